// The C library's sin and cos for Node, as an addon: numpy calls the same, while Math.sin differs in the last bit for
// about one angle in a hundred.

#include <math.h>
#include <node_api.h>

static napi_value call(napi_env env, napi_callback_info info, double (*function)(double)) {
  size_t count = 1;
  napi_value argument, result;
  double number;
  if (napi_get_cb_info(env, info, &count, &argument, NULL, NULL) != napi_ok) return NULL;
  if (napi_get_value_double(env, argument, &number) != napi_ok) {
    napi_throw_type_error(env, NULL, "expected a number");
    return NULL;
  }
  return napi_create_double(env, function(number), &result) == napi_ok ? result : NULL;
}

static napi_value call_sin(napi_env env, napi_callback_info info) { return call(env, info, sin); }

static napi_value call_cos(napi_env env, napi_callback_info info) { return call(env, info, cos); }

NAPI_MODULE_INIT() {
  napi_value function;
  napi_create_function(env, "sin", NAPI_AUTO_LENGTH, call_sin, NULL, &function);
  napi_set_named_property(env, exports, "sin", function);
  napi_create_function(env, "cos", NAPI_AUTO_LENGTH, call_cos, NULL, &function);
  napi_set_named_property(env, exports, "cos", function);
  return exports;
}
