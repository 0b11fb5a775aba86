package io.github.rollserve;

/** The interface of an environment with many agents. The number of a constant on the wire is its position. */
public enum MultiAgentApi {
    /** The environment has one agent, and the interface of gymnasium. */
    NONE,
    /** All agents act in each step, as in PettingZoo's parallel environments. */
    PARALLEL,
    /** Agents act one after the other, as in PettingZoo's AEC environments; each step is the action of one agent. */
    AEC;

    static MultiAgentApi from(int number) {
        return number < 0 || number >= values().length ? NONE : values()[number];
    }
}
