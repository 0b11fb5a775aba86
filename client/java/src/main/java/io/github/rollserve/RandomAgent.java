package io.github.rollserve;

/** An agent that draws actions uniformly from the action space. */
public record RandomAgent() implements Agent {}
