package io.github.rollserve;

import java.util.Arrays;
import java.util.List;
import java.util.Map;

/** A set of observations or actions, as gymnasium defines it. */
public sealed interface Space {
    /** {@return the size of a value after {@code gymnasium.spaces.flatten}, which is the input of an MLP} */
    int flatSize();

    /**
     * Arrays of one shape and type, each element within bounds.
     *
     * @param dataType the type of the elements
     * @param shape the size of each axis of a value
     * @param low the least value of each element, of the same shape; or a scalar where all elements share one bound
     * @param high the greatest value of each element, in the same way
     */
    record Box(DataType dataType, List<Integer> shape, Tensor low, Tensor high) implements Space {
        @Override
        public int flatSize() {
            return product(shape);
        }
    }

    /**
     * One integer from a range: {@code start}, {@code start + 1}, …, {@code start + n - 1}.
     *
     * @param n the number of values
     * @param start the least value
     */
    record Discrete(long n, long start) implements Space {
        @Override
        public int flatSize() {
            return Math.toIntExact(n);
        }
    }

    /**
     * An array of integers, each from a range of its own.
     *
     * @param dataType the type of the elements
     * @param numValues the number of values of each element; its shape is the shape of a value
     * @param start the least value of each element, of the same shape
     */
    record MultiDiscrete(DataType dataType, Tensor numValues, Tensor start) implements Space {
        @Override
        public int flatSize() {
            return (int) Arrays.stream(numValues.toDoubles()).sum();
        }
    }

    /**
     * An array of truth values, which are 0 or 1 in int8.
     *
     * @param shape the size of each axis of a value
     */
    record MultiBinary(List<Integer> shape) implements Space {
        @Override
        public int flatSize() {
            return product(shape);
        }
    }

    /**
     * Named subspaces.
     *
     * @param spaces the subspaces by key, in the order of the environment's own space
     */
    record Dict(Map<String, Space> spaces) implements Space {
        @Override
        public int flatSize() {
            return spaces.values().stream().mapToInt(Space::flatSize).sum();
        }
    }

    /**
     * Numbered subspaces.
     *
     * @param spaces the subspaces in their order
     */
    record Tuple(List<Space> spaces) implements Space {
        @Override
        public int flatSize() {
            return spaces.stream().mapToInt(Space::flatSize).sum();
        }
    }

    private static int product(List<Integer> shape) {
        return shape.stream().reduce(1, Math::multiplyExact);
    }
}
