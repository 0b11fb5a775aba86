package io.github.rollserve;

import java.util.List;
import java.util.Objects;

/**
 * A change of what passes between an agent and the rows of its environment, which the server makes. The comments on the
 * messages of the same names in the protos say which settings the server refuses.
 *
 * <p>Leaves are names of leaves of the observation space; without them, a transform applies to all Boxes.
 */
public sealed interface Transform {
    /** Rewards by their signs: -1, 0 or 1. */
    record SignRewards() implements Transform {}

    /**
     * Rewards moved into bounds, of which at least one is finite.
     *
     * @param low the least reward; negative infinity for no bound
     * @param high the greatest reward; infinity for no bound
     */
    record ClipRewards(double low, double high) implements Transform {}

    /**
     * Rewards times a factor, plus an offset.
     *
     * @param factor the factor, other than 0
     * @param offset the offset
     */
    record ScaleRewards(double factor, double offset) implements Transform {}

    /**
     * Actions of a range that is mapped to the bounds of the environment's Boxes.
     *
     * @param low the action that stands for the lower bounds
     * @param high the action that stands for the upper bounds
     */
    record RescaleActions(double low, double high) implements Transform {
        /** Creates a transform of actions from -1 to 1. */
        public RescaleActions() {
            this(-1, 1);
        }
    }

    /** Actions moved into the bounds of the environment's Boxes. */
    record ClipActions() implements Transform {}

    /**
     * Observations of another type.
     *
     * @param dataType the type, other than {@link DataType#BOOL}
     * @param leaves the leaves to convert
     */
    record CastObservations(DataType dataType, List<String> leaves) implements Transform {
        /**
         * Creates a transform.
         *
         * @param dataType the type, other than {@link DataType#BOOL}
         * @param leaves the leaves to convert
         */
        public CastObservations {
            Objects.requireNonNull(dataType, "dataType");
            leaves = Arguments.list("leaves", leaves);
        }

        /**
         * Creates a transform.
         *
         * @param dataType the type, other than {@link DataType#BOOL}
         * @param leaves the leaves to convert; none for all
         */
        public CastObservations(DataType dataType, String... leaves) {
            this(dataType, Arguments.list("leaves", leaves));
        }
    }

    /**
     * Observations times a factor, plus an offset.
     *
     * @param factor the factor, other than 0
     * @param offset the offset
     * @param leaves the leaves to scale
     */
    record ScaleObservations(double factor, double offset, List<String> leaves) implements Transform {
        /**
         * Creates a transform.
         *
         * @param factor the factor, other than 0
         * @param offset the offset
         * @param leaves the leaves to scale
         */
        public ScaleObservations {
            leaves = Arguments.list("leaves", leaves);
        }

        /**
         * Creates a transform.
         *
         * @param factor the factor, other than 0
         * @param offset the offset
         * @param leaves the leaves to scale; none for all
         */
        public ScaleObservations(double factor, double offset, String... leaves) {
            this(factor, offset, Arguments.list("leaves", leaves));
        }
    }

    /**
     * Observations whose bounds are mapped to other bounds; for Boxes of floats.
     *
     * @param low the value of the lower bounds
     * @param high the value of the upper bounds
     * @param leaves the leaves to rescale
     */
    record RescaleObservations(double low, double high, List<String> leaves) implements Transform {
        /**
         * Creates a transform.
         *
         * @param low the value of the lower bounds
         * @param high the value of the upper bounds
         * @param leaves the leaves to rescale
         */
        public RescaleObservations {
            leaves = Arguments.list("leaves", leaves);
        }

        /**
         * Creates a transform.
         *
         * @param low the value of the lower bounds
         * @param high the value of the upper bounds
         * @param leaves the leaves to rescale; none for all
         */
        public RescaleObservations(double low, double high, String... leaves) {
            this(low, high, Arguments.list("leaves", leaves));
        }
    }

    /**
     * A rectangle of each image, in pixels.
     *
     * @param top the first line
     * @param left the first column
     * @param height the number of lines, at least 1
     * @param width the number of columns, at least 1
     * @param channelsFirst whether images are (C, H, W), not (H, W) or (H, W, C)
     * @param leaves the leaves to crop
     */
    record CropObservations(int top, int left, int height, int width, boolean channelsFirst, List<String> leaves)
        implements Transform {
        /**
         * Creates a transform.
         *
         * @param top the first line
         * @param left the first column
         * @param height the number of lines, at least 1
         * @param width the number of columns, at least 1
         * @param channelsFirst whether images are (C, H, W), not (H, W) or (H, W, C)
         * @param leaves the leaves to crop
         */
        public CropObservations {
            leaves = Arguments.list("leaves", leaves);
        }

        /**
         * Creates a transform of all images, which are (H, W) or (H, W, C).
         *
         * @param top the first line
         * @param left the first column
         * @param height the number of lines, at least 1
         * @param width the number of columns, at least 1
         */
        public CropObservations(int top, int left, int height, int width) {
            this(top, left, height, width, false, List.of());
        }
    }

    /**
     * Images of another size, in pixels.
     *
     * @param height the number of lines, from 1 to 4096
     * @param width the number of columns, from 1 to 4096
     * @param channelsFirst whether images are (C, H, W), not (H, W) or (H, W, C)
     * @param leaves the leaves to resize
     */
    record ResizeObservations(int height, int width, boolean channelsFirst, List<String> leaves) implements Transform {
        /**
         * Creates a transform.
         *
         * @param height the number of lines, from 1 to 4096
         * @param width the number of columns, from 1 to 4096
         * @param channelsFirst whether images are (C, H, W), not (H, W) or (H, W, C)
         * @param leaves the leaves to resize
         */
        public ResizeObservations {
            leaves = Arguments.list("leaves", leaves);
        }

        /**
         * Creates a transform of all images, which are (H, W) or (H, W, C).
         *
         * @param height the number of lines, from 1 to 4096
         * @param width the number of columns, from 1 to 4096
         */
        public ResizeObservations(int height, int width) {
            this(height, width, false, List.of());
        }
    }

    /**
     * Images of red, green and blue in shades of grey.
     *
     * @param keepChannel whether the axis of the channels stays, with one channel
     * @param channelsFirst whether images are (3, H, W), not (H, W, 3)
     * @param leaves the leaves to convert
     */
    record GrayscaleObservations(boolean keepChannel, boolean channelsFirst, List<String> leaves) implements Transform {
        /**
         * Creates a transform.
         *
         * @param keepChannel whether the axis of the channels stays, with one channel
         * @param channelsFirst whether images are (3, H, W), not (H, W, 3)
         * @param leaves the leaves to convert
         */
        public GrayscaleObservations {
            leaves = Arguments.list("leaves", leaves);
        }

        /**
         * Creates a transform of all images, which are (H, W, 3).
         *
         * @param keepChannel whether the axis of the channels stays, with one channel
         */
        public GrayscaleObservations(boolean keepChannel) {
            this(keepChannel, false, List.of());
        }
    }

    /** Observations as one vector of all leaves, as {@code gymnasium.spaces.flatten} makes it. */
    record FlattenObservations() implements Transform {}
}
