package io.github.rollserve;

/** New environments: a whole one, a change of the present one, or updates that differ between the rows of a worker. */
public sealed interface EnvUpdate permits EnvSpec, EnvChange, RowEnvUpdates {}
