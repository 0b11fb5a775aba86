package io.github.rollserve;

/** What acts in the environment: a policy and its recurrent state. It has to fit the sampler's spaces. */
public sealed interface Agent extends PolicyUpdate
    permits MlpAgent, OnnxAgent, PythonAgent, RandomAgent, ConstantAgent {}
