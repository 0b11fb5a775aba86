# Fails if a library offers anything but the names of the public headers: cmake -DNM=… -DLIBRARY=… -P exports.cmake

execute_process(COMMAND "${NM}" --dynamic --defined-only --demangle "${LIBRARY}"
  OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE ";" "," symbols "${symbols}")
string(REGEX REPLACE "\n$" "" symbols "${symbols}")
string(REPLACE "\n" ";" symbols "${symbols}")
if(NOT symbols MATCHES "rollserve::Sampler::obtain_samples")
  message(FATAL_ERROR "expected the public names in ${LIBRARY}, got others")
endif()
if(symbols MATCHES "[^;]*rollserve::v1::[^;]*")
  message(FATAL_ERROR "expected no classes of the protos in ${LIBRARY}, got ${CMAKE_MATCH_0}")
endif()
list(FILTER symbols EXCLUDE REGEX " (typeinfo for |typeinfo name for |vtable for )?rollserve::([A-Z]|(size_of|name_of|text_of|connect|channel_of|channel_arguments|prepare)[[(])")
list(LENGTH symbols num_others)
if(num_others GREATER 0)
  list(JOIN symbols "\n" text)
  message(FATAL_ERROR "expected public names alone in ${LIBRARY}, got ${num_others} others:\n${text}")
endif()
