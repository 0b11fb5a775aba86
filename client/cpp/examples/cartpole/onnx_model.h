#pragma once

#include <rollserve/agents.h>

#include <string>

/// Return a perceptron with hidden layers of tanh as a serialized ONNX model, from `observation` to `logits`. Its
/// initializers are the agent's parameters, by the same names, so that updates of parameters fit both kinds of agents.
std::string onnx_model(const rollserve::Parameters& parameters);
