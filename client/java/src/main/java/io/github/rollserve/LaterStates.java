package io.github.rollserve;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;

/** The recurrent states of segments of which the first one has lost some of its first steps. */
final class LaterStates {
    private LaterStates() {}

    static Columns of(Columns states, Columns agentInfos) {
        Map<String, Tensor> later = new LinkedHashMap<>();
        states.tensors().forEach((name, state) -> {
            if (!states.isMask(name)) {
                Tensor everyStep = agentInfos.tensors().get("state/" + name);
                later.put(name, withFirst(state, everyStep));
                boolean[] mask = states.mask(name).orElseGet(() -> allTrue(state.numRows()));
                mask[0] = everyStep != null;
                if (!Columns.isTrue(mask)) {
                    later.put(Columns.maskName(name), Tensor.of(mask));
                }
            }
        });
        return new Columns(later);
    }

    /** Returns a state whose first row is the one of the first step, or zeros if that is not known. */
    private static Tensor withFirst(Tensor state, Tensor everyStep) {
        ByteBuffer changed = Tensor.allocate(state.dataType(), state.size());
        int rowBytes = state.rowSize() * state.dataType().size();
        if (everyStep != null) {
            changed.put(everyStep.rows(0, 1).bytes());
        }
        changed.position(rowBytes);
        changed.put(state.rows(1, state.numRows()).bytes());
        return Tensor.wrap(state.dataType(), state.shape(), changed.flip());
    }

    private static boolean[] allTrue(int count) {
        boolean[] values = new boolean[count];
        Arrays.fill(values, true);
        return values;
    }
}
