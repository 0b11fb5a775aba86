# An overlay port, which builds the clone or source archive that it lies in:
# vcpkg install rollserve --overlay-ports=client/cpp/packaging/vcpkg
# A port of a registry has vcpkg_from_github here, with the tag and the checksum of a release.
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../../../.." ABSOLUTE)

vcpkg_find_acquire_program(PKGCONFIG)
vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}/client/cpp"
  OPTIONS
    -DROLLSERVE_BUILD_EXAMPLES=OFF
    -DROLLSERVE_BUILD_TESTS=OFF
    "-DPKG_CONFIG_EXECUTABLE=${PKGCONFIG}")
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/rollserve)
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
