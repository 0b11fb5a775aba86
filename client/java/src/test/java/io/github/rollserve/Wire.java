package io.github.rollserve;

import com.google.protobuf.ByteString;
import io.github.rollserve.v1.EpisodeBatchOrBuilder;
import io.github.rollserve.v1.NamedTensor;
import io.github.rollserve.v1.ObtainSamplesResponse;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Messages as a server sends them, written without the package. */
final class Wire {
    private static final Pattern SEGMENT = Pattern.compile("(\\d+):(\\d+)\\+(\\d+)(\\.?)");

    private Wire() {}

    static ObtainSamplesResponse beginning() {
        ObtainSamplesResponse.Builder message = ObtainSamplesResponse.newBuilder();
        message.getBeginningBuilder()
            .setSeed(1L << 63)
            .setFirstEpisodeIndex(4)
            .setPolicyVersion(1)
            .setEnvironmentVersion(2)
            .setSamplerRun("run")
            .setWorkerCount(3)
            .setReproducibility(io.github.rollserve.v1.Reproducibility.REPRODUCIBILITY_EPISODE);
        return message.build();
    }

    static ObtainSamplesResponse response(io.github.rollserve.v1.EpisodeBatch.Builder batch) {
        return ObtainSamplesResponse.newBuilder().setBatch(batch).build();
    }

    static ObtainSamplesResponse progress(int numSimulatedSteps, int numEndedEpisodes) {
        ObtainSamplesResponse.Builder message = ObtainSamplesResponse.newBuilder();
        message.getProgressBuilder().setSimulatedStepCount(numSimulatedSteps).setEndedEpisodeCount(numEndedEpisodes);
        return message.build();
    }

    static ObtainSamplesResponse account(int numEpisodes, int numSteps) {
        ObtainSamplesResponse.Builder message = ObtainSamplesResponse.newBuilder();
        message.getAccountBuilder().setEpisodeCount(numEpisodes).setStepCount(numSteps);
        return message.build();
    }

    /**
     * Returns a batch whose observations count from the first step of each segment: {@code episode:first+length}, with
     * a dot behind if the episode ends.
     */
    static io.github.rollserve.v1.EpisodeBatch.Builder segments(String... segments) {
        io.github.rollserve.v1.EpisodeBatch.Builder batch = io.github.rollserve.v1.EpisodeBatch.newBuilder();
        List<Number> observations = new ArrayList<>();
        List<Number> last = new ArrayList<>();
        List<Number> steps = new ArrayList<>();
        for (String segment : segments) {
            Matcher parts = SEGMENT.matcher(segment);
            if (!parts.matches()) {
                throw new IllegalArgumentException(segment);
            }
            int episode = Integer.parseInt(parts.group(1));
            int first = Integer.parseInt(parts.group(2));
            int end = first + Integer.parseInt(parts.group(3));
            batch.addEpisodeIndices(episode)
                .addFirstSteps(first)
                .addLengths(end - first)
                .addTerminated(!parts.group(4).isEmpty())
                .addTruncated(false)
                .addPolicyVersions(1)
                .addEnvironmentSeeds(1000 + episode);
            for (int step = first; step < end; step++) {
                observations.add(100 * episode + step);
                steps.add(step);
            }
            last.add(100 * episode + end);
        }
        Number[] rows = steps.toArray(new Number[0]);
        return batch
            .addObservations(named("", tensor(DataType.FLOAT32, observations.toArray(new Number[0]), rows.length, 1)))
            .addLastObservations(named("", tensor(DataType.FLOAT32, last.toArray(new Number[0]), last.size(), 1)))
            .addActions(named("", tensor(DataType.INT64, rows)))
            .setRewards(tensor(DataType.FLOAT64, rows));
    }

    static ObtainSamplesResponse response(io.github.rollserve.v1.MultiAgentBatch.Builder batch) {
        return ObtainSamplesResponse.newBuilder().setMultiAgentBatch(batch).build();
    }

    /**
     * Returns a batch of the agents {@code a} and {@code b}, without policies: {@code episode:first+length}, as for
     * segments. One agent acts in each environment step.
     */
    static io.github.rollserve.v1.MultiAgentBatch.Builder episodes(String... parts) {
        EpisodeBatchOrBuilder headers = segments(parts);
        return io.github.rollserve.v1.MultiAgentBatch.newBuilder()
            .addAllAgents(List.of("a", "b"))
            .addAllEpisodeIndices(headers.getEpisodeIndicesList())
            .addAllFirstSteps(headers.getFirstStepsList())
            .addAllLengths(headers.getLengthsList())
            .addAllTerminated(headers.getTerminatedList())
            .addAllTruncated(headers.getTruncatedList())
            .addAllAgentStepCounts(headers.getLengthsList());
    }

    /**
     * Returns the segments of a policy: {@code agent@step,step=episode:first+length}, with the environment steps of the
     * agent's steps.
     */
    static io.github.rollserve.v1.PolicyBatch.Builder policy(String name, String... segments) {
        io.github.rollserve.v1.PolicyBatch.Builder policy =
            io.github.rollserve.v1.PolicyBatch.newBuilder().setPolicy(name);
        for (String segment : segments) {
            policy.addAgentPositions(segment.charAt(0) - 'a');
            for (String step : segment.substring(2, segment.indexOf('=')).split(",")) {
                policy.addEnvironmentSteps(Integer.parseInt(step));
            }
        }
        return policy.setBatch(segments(Arrays.stream(segments)
            .map(segment -> segment.substring(segment.indexOf('=') + 1))
            .toArray(String[]::new)));
    }

    /** Returns three episodes: {@code a} got 1, 2 and 4 by policies of version 3, {@code b} got 5 in the last two. */
    static io.github.rollserve.v1.AgentReturns agentReturns() {
        return io.github.rollserve.v1.AgentReturns.newBuilder()
            .addAllAgents(List.of("a", "b"))
            .addPolicies(io.github.rollserve.v1.PolicyVersion.newBuilder().setPolicy("main").setVersion(3))
            .addPolicies(io.github.rollserve.v1.PolicyVersion.newBuilder().setPolicy("old").setVersion(1))
            .addAllReturns(List.of(1.0, Double.NaN, 2.0, 5.0, 4.0, 5.0))
            .addAllPolicyPositions(List.of(0, -1, 0, 0, 0, 1))
            .build();
    }

    static NamedTensor named(String name, io.github.rollserve.v1.Tensor.Builder tensor) {
        return NamedTensor.newBuilder().setName(name).setTensor(tensor).build();
    }

    /** Returns a tensor; without a shape, it has one axis. */
    static io.github.rollserve.v1.Tensor.Builder tensor(DataType type, Number[] values, long... shape) {
        ByteBuffer data = ByteBuffer.allocate(values.length * type.size()).order(ByteOrder.LITTLE_ENDIAN);
        for (Number value : values) {
            switch (type) {
                case FLOAT32 -> data.putFloat(value.floatValue());
                case FLOAT64 -> data.putDouble(value.doubleValue());
                case BOOL, INT8, UINT8 -> data.put(value.byteValue());
                case INT16, UINT16, FLOAT16 -> data.putShort(value.shortValue());
                case INT32, UINT32 -> data.putInt(value.intValue());
                case INT64, UINT64 -> data.putLong(value.longValue());
            }
        }
        io.github.rollserve.v1.Tensor.Builder tensor = io.github.rollserve.v1.Tensor.newBuilder()
            .setDataType(io.github.rollserve.v1.DataType.valueOf("DATA_TYPE_" + type.name()))
            .setData(ByteString.copyFrom(data.flip()));
        for (long size : shape.length == 0 ? new long[] {values.length} : shape) {
            tensor.addShape(size);
        }
        return tensor;
    }
}
