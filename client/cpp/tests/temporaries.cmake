# Fails unless each expression of temporaries.cc is an error, for as many of them because of a deleted overload:
# cmake -DCOMMAND=… -DNUM_DELETED=… -DNUM_ERRORS=… -P temporaries.cmake

execute_process(COMMAND ${COMMAND} ERROR_VARIABLE text)
string(REGEX MATCHALL "error: [^\n]*" errors "${text}")
set(deleted "${errors}")
list(FILTER deleted INCLUDE REGEX "deleted")
list(LENGTH errors num_errors)
list(LENGTH deleted num_deleted)
if(NOT num_errors EQUAL NUM_ERRORS OR NOT num_deleted EQUAL NUM_DELETED)
  message(FATAL_ERROR "expected ${NUM_ERRORS} errors, ${NUM_DELETED} of them about deleted overloads, "
                      "got ${num_errors} and ${num_deleted}:\n${text}")
endif()
