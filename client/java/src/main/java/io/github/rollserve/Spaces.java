package io.github.rollserve;

import io.github.rollserve.v1.BoxSpace;
import io.github.rollserve.v1.MultiDiscreteSpace;
import io.github.rollserve.v1.NamedSpace;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The spaces of the wire. */
final class Spaces {
    private Spaces() {}

    /** Returns the space in a message; the field is the message's, for errors. */
    static Space from(String field, io.github.rollserve.v1.Space message) {
        switch (message.getKindCase()) {
            case BOX -> {
                BoxSpace box = message.getBox();
                return new Space.Box(
                    Tensors.dataType(field + ".data_type", box.getDataTypeValue()),
                    sizes(field, box.getShapeList()),
                    Tensors.from(field + ".low", box.getLow()),
                    Tensors.from(field + ".high", box.getHigh()));
            }
            case DISCRETE -> {
                return new Space.Discrete(message.getDiscrete().getN(), message.getDiscrete().getStart());
            }
            case MULTI_DISCRETE -> {
                MultiDiscreteSpace space = message.getMultiDiscrete();
                DataType dataType = space.getDataTypeValue() == 0
                    ? DataType.INT64
                    : Tensors.dataType(field + ".data_type", space.getDataTypeValue());
                return new Space.MultiDiscrete(
                    dataType,
                    Tensors.from(field + ".nvec", space.getNvec()),
                    Tensors.from(field + ".start", space.getStart()));
            }
            case MULTI_BINARY -> {
                return new Space.MultiBinary(sizes(field, message.getMultiBinary().getShapeList()));
            }
            case DICT -> {
                Map<String, Space> spaces = new LinkedHashMap<>();
                for (NamedSpace named : message.getDict().getSpacesList()) {
                    spaces.put(named.getName(), from(field + "['" + named.getName() + "']", named.getSpace()));
                }
                return new Space.Dict(Collections.unmodifiableMap(spaces));
            }
            case TUPLE -> {
                List<Space> spaces = new ArrayList<>();
                for (io.github.rollserve.v1.Space space : message.getTuple().getSpacesList()) {
                    spaces.add(from(field + "[" + spaces.size() + "]", space));
                }
                return new Space.Tuple(List.copyOf(spaces));
            }
            default -> throw Errors.malformed(field, "a kind of space that this client knows", "another one");
        }
    }

    private static List<Integer> sizes(String field, List<Long> shape) {
        return Arrays.stream(Tensors.shape(field + ".shape", shape)).boxed().toList();
    }
}
