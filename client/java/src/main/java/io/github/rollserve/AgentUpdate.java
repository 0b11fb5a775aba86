package io.github.rollserve;

/** A whole agent, which replaces any present one, or parameters or a change of settings for the present agent. */
public sealed interface AgentUpdate permits Agent, Parameters, AgentChange {}
