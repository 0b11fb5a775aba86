package io.github.rollserve;

/** An update of the sampler's agent, or of policies by name where its environment has many agents. */
public sealed interface AgentUpdate permits PolicyUpdate, Policies {}
