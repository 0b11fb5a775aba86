package io.github.rollserve;

import java.util.Objects;

/**
 * The source of an agent's action mask, which says for each action of a Discrete or MultiDiscrete space whether it is
 * legal at a step. Batches have the mask as the agent's info {@code action_mask}.
 */
public sealed interface ActionMask {
    /**
     * A mask that the environment returns as an info with each observation.
     *
     * @param name the name of the info
     */
    record Info(String name) implements ActionMask {
        /**
         * Names the info.
         *
         * @param name the name of the info
         */
        public Info {
            Objects.requireNonNull(name, "name");
        }
    }

    /**
     * A mask that is a leaf of the observation space. The leaf is no part of the input of an {@link MlpAgent}.
     *
     * @param leaf the name of the leaf
     */
    record Observation(String leaf) implements ActionMask {
        /**
         * Names the leaf.
         *
         * @param leaf the name of the leaf
         */
        public Observation {
            Objects.requireNonNull(leaf, "leaf");
        }
    }
}
