"""Conan recipe: `conan create client/cpp` in a clone, or in the source archive of a release, builds the package."""

import os
import re

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load
from conan.tools.gnu import PkgConfigDeps


class Rollserve(ConanFile):
    """Recipe of the client."""

    name = "rollserve"
    description = "Client of Rollserve: remote experience generation for reinforcement learning"
    license = "Apache-2.0"
    homepage = "https://github.com/rollserve/rollserve"
    url = homepage
    topics = ("reinforcement-learning", "sampling", "grpc")
    package_type = "library"
    settings = ("os", "arch", "compiler", "build_type")
    options = {"shared": [True, False], "fPIC": [True, False]}  # noqa: RUF012  # as Conan wants them
    default_options = {"shared": False, "fPIC": True}  # noqa: RUF012
    implements = ("auto_shared_fpic",)

    def set_version(self) -> None:
        """Take the version of CMakeLists.txt."""
        text = load(self, os.path.join(self.recipe_folder, "CMakeLists.txt"))
        self.version = re.search(r"project\(rollserve VERSION (\S+)", text).group(1)

    def export_sources(self) -> None:
        """Export the client and the protos, in the folders that they have in a clone."""
        root = os.path.join(self.recipe_folder, "..", "..")
        for pattern in ("CMakeLists.txt", "cmake/*", "include/*", "src/*"):
            copy(self, f"client/cpp/{pattern}", root, self.export_sources_folder)
        for pattern in ("protos/rollserve/*", "LICENSE"):
            copy(self, pattern, root, self.export_sources_folder)

    def layout(self) -> None:
        """Build beside the sources."""
        cmake_layout(self)

    def requirements(self) -> None:
        """Name the libraries; no public header includes them but grpc.h."""
        self.requires("grpc/[>=1.50 <2]")
        self.requires("protobuf/[>=3.21]")
        self.requires("lz4/[>=1.9 <2]")
        self.requires("zstd/[>=1.5 <2]")

    def build_requirements(self) -> None:
        """Name the programs that generate code and find the codecs."""
        self.tool_requires("protobuf/<host_version>")
        self.tool_requires("grpc/<host_version>")
        self.tool_requires("pkgconf/[>=2 <3]")

    def generate(self) -> None:
        """Write what CMake and pkg-config find the libraries by."""
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["ROLLSERVE_BUILD_EXAMPLES"] = False
        toolchain.cache_variables["ROLLSERVE_BUILD_TESTS"] = False
        toolchain.generate()
        CMakeDeps(self).generate()
        PkgConfigDeps(self).generate()

    def build(self) -> None:
        """Build the library."""
        cmake = CMake(self)
        cmake.configure(build_script_folder="client/cpp")
        cmake.build()

    def package(self) -> None:
        """Install library, headers and license."""
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        CMake(self).install()

    def package_info(self) -> None:
        """Offer the target `rollserve::rollserve`."""
        self.cpp_info.libs = ["rollserve"]
        if self.settings.os in ("Linux", "FreeBSD"):
            self.cpp_info.system_libs = ["pthread"]
