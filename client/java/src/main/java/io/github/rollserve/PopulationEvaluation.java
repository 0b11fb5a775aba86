package io.github.rollserve;

import java.util.Arrays;

/**
 * The result of an evaluation of K members of a population on M episodes each.
 *
 * @param returns (K, M), the sums of the episodes' rewards
 * @param lengths (K, M), the numbers of steps of the episodes
 * @param numSteps the number of steps of all episodes
 * @param policyVersion the version of the agent whose structure and other parameters the members share
 * @param envVersion the version of the sampler's environment; 0 if the call brought its own
 * @param seed the root seed of the episodes
 * @param firstEpisodeIndex the index of the first episode of the first member
 * @param reproducibility which unit of work the same seed gives again
 * @param account what was simulated; all episodes count as discarded
 */
public record PopulationEvaluation(
    double[][] returns,
    long[][] lengths,
    long numSteps,
    long policyVersion,
    long envVersion,
    long seed,
    long firstEpisodeIndex,
    Reproducibility reproducibility,
    Account account) {

    /** {@return the mean return of each member, (K)} */
    public double[] meanReturns() {
        return Arrays.stream(returns).mapToDouble(member -> Arrays.stream(member).average().orElse(0)).toArray();
    }

    @Override
    public boolean equals(Object other) {
        return Records.equal(this, other);
    }

    @Override
    public int hashCode() {
        return Records.hash(this);
    }

    static PopulationEvaluation from(io.github.rollserve.v1.PopulationEvaluation message) {
        int numMembers = message.getMemberCount();
        int numEpisodes = message.getEpisodeCount();
        long expected = (long) numMembers * numEpisodes;
        if (message.getReturnsCount() != expected || message.getLengthsCount() != expected) {
            throw Errors.malformed("evaluation.returns", expected + " values", message.getReturnsCount());
        }
        double[][] returns = new double[numMembers][numEpisodes];
        long[][] lengths = new long[numMembers][numEpisodes];
        for (int i = 0; i < message.getReturnsCount(); i++) {
            returns[i / numEpisodes][i % numEpisodes] = message.getReturns(i);
            lengths[i / numEpisodes][i % numEpisodes] = message.getLengths(i);
        }
        return new PopulationEvaluation(
            returns,
            lengths,
            message.getStepCount(),
            message.getPolicyVersion(),
            message.getEnvironmentVersion(),
            message.getSeed(),
            message.getFirstEpisodeIndex(),
            Reproducibility.from(message.getReproducibilityValue()),
            Account.from(message.getAccount(), 0));
    }
}
