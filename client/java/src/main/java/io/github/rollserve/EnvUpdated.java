package io.github.rollserve;

import io.github.rollserve.v1.UpdateEnvResponse;
import java.util.List;

/**
 * The result of an update of the environments.
 *
 * @param envVersion the version of the new environments
 * @param observationSpace the space of their observations
 * @param actionSpace the space of their actions
 * @param reproducibility which unit of work the same seed gives again
 * @param numRows the number of rows that each worker steps at once for a call
 * @param numEpisodesPerRow the number of episodes of each row in a block; 0 unless the class is BLOCK
 * @param agents the names of the possible agents of an environment with many, whose spaces are Dict spaces of the
 *     agents' by these names; empty for an environment with one agent
 */
public record EnvUpdated(
    long envVersion,
    Space observationSpace,
    Space actionSpace,
    Reproducibility reproducibility,
    int numRows,
    int numEpisodesPerRow,
    List<String> agents) {

    static EnvUpdated from(UpdateEnvResponse message) {
        return new EnvUpdated(
            message.getEnvironmentVersion(),
            Spaces.from("observation_space", message.getObservationSpace()),
            Spaces.from("action_space", message.getActionSpace()),
            Reproducibility.from(message.getReproducibilityValue()),
            message.getRowCount(),
            message.getEpisodesPerRow(),
            List.copyOf(message.getAgentsList()));
    }
}
