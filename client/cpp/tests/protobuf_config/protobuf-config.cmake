# Stands in for the files for CMake that protobuf has from version 22 on, which Debian has none of.
find_package(Protobuf MODULE REQUIRED)
message(STATUS "read protobuf-config.cmake")
