/** Messages of sampling calls for tests. */

import type { MessageInitShape } from "@bufbuild/protobuf";

import { Reproducibility, type EpisodeBatchSchema } from "#dist/generated/rollserve/v1/episode_batch_pb";
import { DataType } from "#dist/generated/rollserve/v1/tensor_pb";

import { named, response } from "./scripted_server.js";

/** A segment of an episode: its index, its first step, its rewards, and whether it ends the episode. */
export interface Segment {
  readonly index: number;
  readonly first?: number;
  readonly rewards: readonly number[];
  readonly ends?: boolean;
}

type BatchInit = MessageInitShape<typeof EpisodeBatchSchema>;

/**
 * Return a response with segments. The observation of step t of episode i is [i, t]; each action is the reward.
 *
 * @param segments - The segments.
 * @param others - Further parts of the message.
 */
export function batch(segments: readonly Segment[], others: Partial<BatchInit> = {}): Uint8Array {
  const steps = segments.flatMap(({ index, first = 0, rewards }) => rewards.map((_, step) => [index, first + step]));
  const lasts = segments.map(({ index, first = 0, rewards }) => [index, first + rewards.length]);
  const rewards = segments.flatMap((segment) => segment.rewards);
  return response({
    case: "batch",
    value: {
      episodeIndices: segments.map(({ index }) => BigInt(index)),
      firstSteps: segments.map(({ first = 0 }) => BigInt(first)),
      lengths: segments.map((segment) => segment.rewards.length),
      terminated: segments.map(({ ends = true }) => ends),
      truncated: segments.map(() => false),
      policyVersions: segments.map(() => 1n),
      environmentSeeds: segments.map(({ index }) => 100 + index),
      observations: [named("", DataType.FLOAT32, [steps.length, 2], Float32Array.from(steps.flat()))],
      lastObservations: [named("", DataType.FLOAT32, [lasts.length, 2], Float32Array.from(lasts.flat()))],
      actions: [named("", DataType.INT64, [rewards.length], BigInt64Array.from(rewards, BigInt))],
      rewards: named("", DataType.FLOAT64, [rewards.length], Float64Array.from(rewards)).tensor,
      ...others,
    } as BatchInit,
  });
}

/** Return the beginning of a stream. */
export function beginning(
  others: { readonly reproducibility?: Reproducibility; readonly rowCount?: bigint } = {},
): Uint8Array {
  const value = { seed: 7n, policyVersion: 1n, environmentVersion: 1n, samplerRun: "run", workerCount: 2 };
  return response({ case: "beginning", value: { reproducibility: Reproducibility.EPISODE, ...value, ...others } });
}

/** Return the account of a stream. */
export function account(episodeCount: number, stepCount: number): Uint8Array {
  const value = { episodeCount: BigInt(episodeCount), stepCount: BigInt(stepCount), seed: 7n, firstEpisodeIndex: 0n };
  return response({ case: "account", value });
}
