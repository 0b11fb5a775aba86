package io.github.rollserve;

import java.util.List;
import java.util.Optional;
import java.util.OptionalDouble;
import rollserve.v1.EvaluationOuterClass;

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
 * @param episodes the episodes, if the call asked for them
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
    Optional<EpisodeBatch> episodes) {

    /**
     * Statistics of N numbers.
     *
     * @param mean their mean
     * @param std their sample standard deviation, with N - 1; empty for a single number
     * @param confidenceLow the lower end of the 95 % confidence interval of the mean; empty for a single number
     * @param confidenceHigh its upper end
     */
    public record Summary(
        double mean, OptionalDouble std, OptionalDouble confidenceLow, OptionalDouble confidenceHigh) {}

    static Evaluation from(EvaluationOuterClass.Evaluation message, Optional<EpisodeBatch> episodes) {
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
            episodes);
    }

    private static double[] doubles(List<Double> values) {
        return values.stream().mapToDouble(Double::doubleValue).toArray();
    }

    private static Summary summary(EvaluationOuterClass.Summary message) {
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
