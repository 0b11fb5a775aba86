package io.github.rollserve;

import java.util.List;
import java.util.Optional;

/**
 * Updates that differ between the rows of a worker.
 *
 * @param updates an {@link EnvSpec} or an {@link EnvChange} for each row of a worker, in their order; empty to leave
 *     the row's environment as it is
 */
public record RowEnvUpdates(List<Optional<EnvUpdate>> updates) implements EnvUpdate {
    /**
     * Copies updates.
     *
     * @param updates an update for each row of a worker, in their order; empty to leave the row's environment as it is
     */
    public RowEnvUpdates {
        updates = Arguments.list("updates", updates);
    }
}
