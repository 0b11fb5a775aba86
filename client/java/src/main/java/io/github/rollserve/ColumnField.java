package io.github.rollserve;

import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import rollserve.v1.EpisodeBatchOuterClass;
import rollserve.v1.TensorOuterClass;
import rollserve.v1.TensorOuterClass.NamedTensor;

/** A field of a batch that has columns. */
enum ColumnField {
    OBSERVATIONS(true, false, EpisodeBatchOuterClass.EpisodeBatch::getObservationsList),
    LAST_OBSERVATIONS(false, false, EpisodeBatchOuterClass.EpisodeBatch::getLastObservationsList),
    ACTIONS(true, false, EpisodeBatchOuterClass.EpisodeBatch::getActionsList),
    ENVIRONMENT_ACTIONS(true, false, EpisodeBatchOuterClass.EpisodeBatch::getEnvironmentActionsList),
    RAW_REWARDS(true, false, message -> optional(message.hasRawRewards(), message.getRawRewards())),
    AGENT_INFOS(true, true, EpisodeBatchOuterClass.EpisodeBatch::getAgentInfosList),
    ENVIRONMENT_INFOS(true, true, EpisodeBatchOuterClass.EpisodeBatch::getEnvironmentInfosList),
    EPISODE_INFOS(false, true, EpisodeBatchOuterClass.EpisodeBatch::getEpisodeInfosList),
    INITIAL_STATES(false, true, EpisodeBatchOuterClass.EpisodeBatch::getInitialStatesList),
    LAST_STATES(false, true, EpisodeBatchOuterClass.EpisodeBatch::getLastStatesList),
    LAST_VALUES(false, true, message -> optional(message.hasLastValues(), message.getLastValues()));

    /** Whether the columns have a row for each step, instead of one for each segment. */
    final boolean isPerStep;
    /** Whether messages can lack columns that others have. */
    final boolean hasGaps;

    private final Function<EpisodeBatchOuterClass.EpisodeBatch, List<NamedTensor>> messages;

    ColumnField(
        boolean isPerStep, boolean hasGaps, Function<EpisodeBatchOuterClass.EpisodeBatch, List<NamedTensor>> messages) {
        this.isPerStep = isPerStep;
        this.hasGaps = hasGaps;
        this.messages = messages;
    }

    /** Returns a tensor that only some messages have, as a column with the empty name. */
    private static List<NamedTensor> optional(boolean isThere, TensorOuterClass.Tensor tensor) {
        return isThere ? List.of(NamedTensor.newBuilder().setTensor(tensor).build()) : List.of();
    }

    List<NamedTensor> of(EpisodeBatchOuterClass.EpisodeBatch message) {
        return messages.apply(message);
    }

    /** The field's name on the wire. */
    String wireName() {
        return name().toLowerCase(java.util.Locale.ROOT);
    }

    /** Returns what a function makes of each field. */
    static Map<ColumnField, Columns> each(Function<ColumnField, Columns> function) {
        Map<ColumnField, Columns> columns = new EnumMap<>(ColumnField.class);
        for (ColumnField field : values()) {
            columns.put(field, function.apply(field));
        }
        return columns;
    }
}
