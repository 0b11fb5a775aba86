package io.github.rollserve;

/** Which unit of work the same seed, indices and versions give again. The number on the wire is the position. */
public enum Reproducibility {
    /** A class that this client does not know. */
    UNKNOWN,
    /** Every episode, to the last bit, however many workers there are and whatever ran before. */
    EPISODE,
    /** At best everything that one worker does from its start on. A broken stream cannot be resumed. */
    WORKER,
    /** Every block of episodes, to the last bit: rows that share random numbers are seeded and run as a whole. */
    BLOCK;

    boolean isRepeatable() {
        return this == EPISODE || this == BLOCK;
    }

    static Reproducibility from(int number) {
        return number < 0 || number >= values().length ? UNKNOWN : values()[number];
    }
}
