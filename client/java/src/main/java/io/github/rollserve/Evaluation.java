package io.github.rollserve;

import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.OptionalDouble;

/**
 * The result of an evaluation of N episodes, in the order of their indices.
 *
 * @param returns (N), the sums of the episodes' rewards
 * @param lengths (N), the numbers of steps of the episodes
 * @param terminated (N), whether the environment ended the episodes
 * @param truncated (N), whether a limit ended the episodes
 * @param returnSummary the summary of the returns
 * @param lengthSummary the summary of the lengths
 * @param policyVersion the version that acted
 * @param envVersion the version of the sampler's environment; 0 if the call brought its own
 * @param seed the root seed of the episodes
 * @param firstEpisodeIndex the index of the first episode
 * @param reproducibility which unit of work the same seed gives again
 * @param account what was simulated; episodes that are not returned count as discarded
 * @param episodes the episodes, if the call asked for them and the environment has one agent
 * @param agentReturns what each agent got, if the environment has many: {@code returns} then are sums over all agents,
 *     and {@code lengths} count environment steps
 * @param multiAgentEpisodes the episodes, if the call asked for them and the environment has many agents
 */
public record Evaluation(
    double[] returns,
    long[] lengths,
    boolean[] terminated,
    boolean[] truncated,
    Summary returnSummary,
    Summary lengthSummary,
    long policyVersion,
    long envVersion,
    long seed,
    long firstEpisodeIndex,
    Reproducibility reproducibility,
    Account account,
    Optional<EpisodeBatch> episodes,
    Optional<AgentReturns> agentReturns,
    Optional<MultiAgentBatch> multiAgentEpisodes) {

    /**
     * Statistics of N numbers.
     *
     * @param mean their mean
     * @param std their sample standard deviation, with N - 1; empty for a single number
     * @param confidenceLow the lower end of the 95 % confidence interval of the mean; empty for a single number
     * @param confidenceHigh its upper end
     */
    public record Summary(
        double mean, OptionalDouble std, OptionalDouble confidenceLow, OptionalDouble confidenceHigh) {

        /** Returns the summary of at least one number, with an interval by Student's t distribution. */
        static Summary of(double[] values) {
            int count = values.length;
            double mean = Arrays.stream(values).sum() / count;
            if (count == 1) {
                return new Summary(mean, OptionalDouble.empty(), OptionalDouble.empty(), OptionalDouble.empty());
            }
            double squares = Arrays.stream(values).map(value -> (value - mean) * (value - mean)).sum();
            double std = Math.sqrt(squares / (count - 1));
            double margin = StudentsT.bound(count - 1) * std / Math.sqrt(count);
            return new Summary(
                mean, OptionalDouble.of(std), OptionalDouble.of(mean - margin), OptionalDouble.of(mean + margin));
        }
    }

    @Override
    public boolean equals(Object other) {
        return Records.equal(this, other);
    }

    @Override
    public int hashCode() {
        return Records.hash(this);
    }

    static Evaluation from(
        io.github.rollserve.v1.Evaluation message, Optional<EpisodeBatch> episodes,
        Optional<MultiAgentBatch> multiAgentEpisodes) {
        return new Evaluation(
            doubles(message.getReturnsList()),
            message.getLengthsList().stream().mapToLong(Long::longValue).toArray(),
            BatchDecoder.booleans(message.getTerminatedList()),
            BatchDecoder.booleans(message.getTruncatedList()),
            summary(message.getReturnSummary()),
            summary(message.getLengthSummary()),
            message.getPolicyVersion(),
            message.getEnvironmentVersion(),
            message.getSeed(),
            message.getFirstEpisodeIndex(),
            Reproducibility.from(message.getReproducibilityValue()),
            Account.from(message.getAccount(), 0),
            episodes,
            Optional.of(message.getAgentReturns()).filter(given -> message.hasAgentReturns()).map(AgentReturns::from),
            multiAgentEpisodes);
    }

    private static double[] doubles(List<Double> values) {
        return values.stream().mapToDouble(Double::doubleValue).toArray();
    }

    private static Summary summary(io.github.rollserve.v1.Summary message) {
        return new Summary(
            message.getMean(),
            optional(message.hasStandardDeviation(), message.getStandardDeviation()),
            optional(message.hasConfidenceLow(), message.getConfidenceLow()),
            optional(message.hasConfidenceHigh(), message.getConfidenceHigh()));
    }

    private static OptionalDouble optional(boolean has, double value) {
        return has ? OptionalDouble.of(value) : OptionalDouble.empty();
    }
}
