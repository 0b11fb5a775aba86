package io.github.rollserve;

/** A whole agent, or parameters or a change of settings for a present one: also what a policy by name is updated by. */
public sealed interface PolicyUpdate extends AgentUpdate permits Agent, Parameters, AgentChange {}
