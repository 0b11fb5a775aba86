package io.github.rollserve;

/** How the rows of an environment are stepped. The number on the wire is the position. */
public enum Vectorization {
    /** As the server is set. */
    DEFAULT,
    /** One by one. */
    ROWS,
    /** All rows of a worker together, by the environment's own code. */
    NATIVE,
    /** All rows of a worker together, by EnvPool. */
    ENVPOOL;

    static Vectorization from(int number) {
        return number < 0 || number >= values().length ? DEFAULT : values()[number];
    }
}
