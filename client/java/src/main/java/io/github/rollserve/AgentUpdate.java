package io.github.rollserve;

/** A whole agent, which replaces any present one, or parameters for the present agent. */
public sealed interface AgentUpdate permits Agent, Parameters {}
