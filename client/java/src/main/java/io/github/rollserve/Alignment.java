package io.github.rollserve;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Aligns the steps of agents to the environment steps of a batch, which follow each other as its parts do. */
final class Alignment {
    private final EpisodeParts parts;
    private final int[] firstRows;
    private final Map<Long, List<Integer>> partsOfEpisodes = new HashMap<>();

    Alignment(EpisodeParts parts) {
        this.parts = parts;
        this.firstRows = new int[parts.size() + 1];
        for (int i = 0; i < parts.size(); i++) {
            firstRows[i + 1] = firstRows[i] + parts.lengths()[i];
            partsOfEpisodes.computeIfAbsent(parts.episodeIndices()[i], index -> new ArrayList<>()).add(i);
        }
    }

    /** Returns the steps of each agent that acted. Steps that belong to earlier batches are left out. */
    Map<String, AgentSteps> of(List<String> agents, List<PolicyBatch> policies) {
        Map<Integer, Writer> writers = new HashMap<>();
        for (PolicyBatch part : policies) {
            for (int i = 0; i < part.batch().numSegments(); i++) {
                writers.computeIfAbsent(part.agentPositions()[i], agent -> new Writer(part.batch())).put(part, i);
            }
        }
        Map<String, AgentSteps> steps = new LinkedHashMap<>();
        for (int i = 0; i < agents.size(); i++) {
            if (writers.containsKey(i)) {
                steps.put(agents.get(i), writers.get(i).steps());
            }
        }
        return steps;
    }

    /** Returns the row of an environment step, or -1 for one that the batch does not have. */
    private int row(long episodeIndex, long envStep) {
        for (int part : partsOfEpisodes.getOrDefault(episodeIndex, List.of())) {
            long offset = envStep - parts.firstSteps()[part];
            if (offset >= 0 && offset < parts.lengths()[part]) {
                return firstRows[part] + (int) offset;
            }
        }
        return -1;
    }

    /** Writes the steps of one agent. */
    private final class Writer {
        private final int numSteps = firstRows[parts.size()];
        private final boolean[] acted = new boolean[numSteps];
        private final boolean[] terminated = new boolean[numSteps];
        private final boolean[] truncated = new boolean[numSteps];
        private final long[] policyVersions = new long[numSteps];
        private final Map<String, Rows> observations;
        private final Map<String, Rows> actions;
        private final Rows rewards;

        Writer(EpisodeBatch model) {
            observations = rows(model.observations());
            actions = rows(model.actions());
            rewards = new Rows(model.rewards(), numSteps);
        }

        private Map<String, Rows> rows(Columns models) {
            Map<String, Rows> rows = new LinkedHashMap<>();
            models.tensors().forEach((name, model) -> rows.put(name, new Rows(model, numSteps)));
            return rows;
        }

        void put(PolicyBatch part, int segment) {
            EpisodeBatch batch = part.batch();
            int last = batch.firstRow(segment + 1) - 1;
            for (int from = batch.firstRow(segment); from <= last; from++) {
                int row = row(batch.episodeIndices()[segment], part.envSteps()[from]);
                if (row >= 0) {
                    put(row, batch, from);
                    acted[row] = true;
                    policyVersions[row] = batch.policyVersions()[segment];
                    terminated[row] = from == last && batch.terminated()[segment];
                    truncated[row] = from == last && batch.truncated()[segment];
                }
            }
        }

        private void put(int row, EpisodeBatch batch, int from) {
            observations.forEach((name, rows) -> rows.put(row, batch.observations().get(name), from));
            actions.forEach((name, rows) -> rows.put(row, batch.actions().get(name), from));
            rewards.put(row, batch.rewards(), from);
        }

        AgentSteps steps() {
            return new AgentSteps(
                acted, columns(observations), columns(actions), rewards.tensor(), terminated, truncated,
                policyVersions);
        }

        private static Columns columns(Map<String, Rows> rows) {
            Map<String, Tensor> tensors = new LinkedHashMap<>();
            rows.forEach((name, each) -> tensors.put(name, each.tensor()));
            return new Columns(tensors);
        }
    }

    /** A tensor of zeros that rows of others are put into. */
    private static final class Rows {
        private final Tensor model;
        private final int numRows;
        private final int rowBytes;
        private final ByteBuffer data;

        Rows(Tensor model, int numRows) {
            this.model = model;
            this.numRows = numRows;
            this.rowBytes = model.rowSize() * model.dataType().size();
            this.data = Tensor.allocate(model.dataType(), (long) numRows * model.rowSize());
        }

        void put(int row, Tensor source, int from) {
            if (source.dataType() != model.dataType() || !source.hasRowsLike(model)) {
                throw Errors.malformed("policies", "rows as in " + model + " of the same agent", source);
            }
            data.put(row * rowBytes, source.data(), from * rowBytes, rowBytes);
        }

        Tensor tensor() {
            int[] shape = model.shape();
            shape[0] = numRows;
            return Tensor.wrap(model.dataType(), shape, data);
        }
    }
}
