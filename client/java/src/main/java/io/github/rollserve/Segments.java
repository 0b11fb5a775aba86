package io.github.rollserve;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** Puts the segments of policies in order: by policy or by agent. Each value is copied once. */
final class Segments {
    private Segments() {}

    /**
     * Where a segment is.
     *
     * @param part the segments of a policy
     * @param position the position of the segment among them
     */
    private record Place(PolicyBatch part, int position) {
        long episodeIndex() {
            return part.batch().episodeIndices()[position];
        }

        int agentPosition() {
            return part.agentPositions()[position];
        }

        long firstEnvStep() {
            return part.envSteps()[part.batch().firstRow(position)];
        }

        /** Says whether the segment is a number of positions behind another one of the same part. */
        boolean isBehind(Place other, int distance) {
            return part == other.part && position == other.position + distance;
        }
    }

    private static List<Place> places(List<PolicyBatch> parts) {
        List<Place> places = new ArrayList<>();
        for (PolicyBatch part : parts) {
            for (int i = 0; i < part.batch().numSegments(); i++) {
                places.add(new Place(part, i));
            }
        }
        return places;
    }

    /** Says whether there is one part of each policy, by episode, whose segments all begin their agents' lives. */
    static boolean areJoined(List<PolicyBatch> parts) {
        return parts.stream().map(PolicyBatch::policy).distinct().count() == parts.size()
            && parts.stream().map(PolicyBatch::batch).allMatch(batch ->
                Arrays.stream(batch.firstSteps()).allMatch(step -> step == 0) && isRising(batch.episodeIndices()));
    }

    private static boolean isRising(long[] values) {
        for (int i = 1; i < values.length; i++) {
            if (values[i] < values[i - 1]) {
                return false;
            }
        }
        return true;
    }

    /**
     * Returns one part for each policy, by name: the segments by episode, agent and time, where parts of one life are
     * one segment.
     */
    static List<PolicyBatch> joined(List<PolicyBatch> parts) {
        Map<String, List<PolicyBatch>> policies = new TreeMap<>();
        parts.forEach(part -> policies.computeIfAbsent(part.policy(), name -> new ArrayList<>()).add(part));
        Comparator<Place> order =
            Comparator.comparingLong(Place::episodeIndex).thenComparingInt(Place::agentPosition);
        List<PolicyBatch> joined = new ArrayList<>();
        policies.forEach((policy, its) -> {
            List<Place> places = places(its);
            places.sort(order); // stable: the segments of an agent's episode stay in the order of time
            joined.add(merged(gather(policy, places)));
        });
        return List.copyOf(joined);
    }

    private static PolicyBatch merged(PolicyBatch ordered) {
        Headers headers = ordered.batch().headers();
        int[] agents = ordered.agentPositions();
        Runs runs = Runs.of(headers.size(), i -> agents[i] == agents[i - 1] && headers.follows(i, headers, i - 1));
        return new PolicyBatch(
            ordered.policy(),
            Joining.merged(ordered.batch(), runs),
            Arrays.stream(runs.begins()).map(begin -> agents[begin]).toArray(),
            ordered.envSteps(),
            Arrays.stream(runs.begins()).mapToDouble(begin -> ordered.rewardsBefore()[begin]).toArray());
    }

    /** Returns the segments of each agent that has some, by episode and time, whatever policies acted. */
    static Map<String, EpisodeBatch> byAgent(List<String> agents, List<PolicyBatch> parts) {
        List<List<Place>> places = new ArrayList<>();
        agents.forEach(agent -> places.add(new ArrayList<>()));
        places(parts).forEach(place -> places.get(place.agentPosition()).add(place));
        Comparator<Place> order =
            Comparator.comparingLong(Place::episodeIndex).thenComparingLong(Place::firstEnvStep);
        Map<String, EpisodeBatch> batches = new LinkedHashMap<>();
        for (int i = 0; i < agents.size(); i++) {
            if (!places.get(i).isEmpty()) {
                places.get(i).sort(order);
                batches.put(agents.get(i), gather("", places.get(i)).batch());
            }
        }
        return batches;
    }

    /** Returns the segments at some places, in their order. Those that are consecutive are copied together. */
    private static PolicyBatch gather(String policy, List<Place> places) {
        List<PolicyBatch> parts = new ArrayList<>();
        for (int begin = 0, end; begin < places.size(); begin = end) {
            Place first = places.get(begin);
            end = begin + 1;
            while (end < places.size() && places.get(end).isBehind(first, end - begin)) {
                end++;
            }
            parts.add(first.part().segments(first.position(), first.position() + end - begin));
        }
        return concatenate(policy, parts);
    }

    /** Returns the segments of all parts, in their order. */
    static PolicyBatch concatenate(String policy, List<PolicyBatch> parts) {
        return new PolicyBatch(
            policy,
            EpisodeBatch.concatenate(parts.stream().map(PolicyBatch::batch).toList()),
            parts.stream().flatMapToInt(part -> Arrays.stream(part.agentPositions())).toArray(),
            parts.stream().flatMapToLong(part -> Arrays.stream(part.envSteps())).toArray(),
            parts.stream().flatMapToDouble(part -> Arrays.stream(part.rewardsBefore())).toArray());
    }
}
