/**
 * Episode batches from messages of the wire, without copies of their columns where the machine allows that.
 *
 * @packageDocumentation
 */

import { EpisodeBatch } from "./episode_batch.js";
import { mismatch } from "./errors.js";
import { unstack } from "./frame_stacks.js";
import type { EpisodeBatch as BatchMessage } from "./generated/rollserve/v1/episode_batch_pb.js";
import type { NamedTensor, Tensor as TensorMessage } from "./generated/rollserve/v1/tensor_pb.js";
import { Columns } from "./tensor.js";
import { addNamedTensors, inNamed, tensorFromMessage } from "./tensor_messages.js";

/**
 * Return the batch in a message, whose columns refer to the message's bytes unless they are compressed.
 *
 * @param message - The message.
 * @param rowCount - The number of rows of all workers of a fragment call; otherwise 0.
 * @throws Error - A malformed message.
 */
export function batchFromMessage(message: BatchMessage, rowCount: bigint): EpisodeBatch {
  const observations = columnsOf(message.observations);
  const lastObservations = columnsOf(message.lastObservations);
  for (const { name, frameCount, frames } of message.frameStacks) {
    inNamed(name, () => {
      if (observations.has(name) || lastObservations.has(name)) {
        throw new Error(mismatch("unique names", "this name twice"));
      }
      const stacks = unstack(tensorFromMessage(frames), frameCount, message.lengths);
      observations.set(name, stacks.observations);
      lastObservations.set(name, stacks.lastObservations);
    });
  }
  const { workerIndices } = message;
  const { rawRewards, lastValues, environmentActions, returnsBefore } = message;
  return new EpisodeBatch({
    observations,
    lastObservations,
    actions: columnsOf(message.actions),
    rewards: rewardsOf("rewards", message.rewards),
    lengths: Uint32Array.from(message.lengths),
    terminated: Uint8Array.from(message.terminated, Number),
    truncated: Uint8Array.from(message.truncated, Number),
    agentInfos: columnsOf(message.agentInfos),
    envInfos: columnsOf(message.environmentInfos),
    episodeInfos: columnsOf(message.episodeInfos),
    policyVersions: BigInt64Array.from(message.policyVersions),
    episodeIndices: BigUint64Array.from(message.episodeIndices),
    firstSteps: BigUint64Array.from(message.firstSteps),
    envSeeds: Uint32Array.from(message.environmentSeeds),
    workerIndices: workerIndices.length === 0 ? undefined : Uint32Array.from(workerIndices),
    rowIndices:
      rowCount === 0n ? undefined : Uint32Array.from(message.episodeIndices, (index) => Number(index % rowCount)),
    initialStates: columnsOf(message.initialStates),
    lastStates: columnsOf(message.lastStates),
    lastValues: lastValues && tensorFromMessage(lastValues),
    rawRewards: rawRewards && rewardsOf("rawRewards", rawRewards),
    envActions: environmentActions.length === 0 ? undefined : columnsOf(environmentActions),
    returnsBefore: Float64Array.from(
      returnsBefore.length > 0 ? returnsBefore : message.firstSteps.map((step) => (step === 0n ? 0 : NaN)),
    ),
  });
}

function rewardsOf(field: string, message: TensorMessage | undefined): Float64Array {
  const rewards = tensorFromMessage(message);
  if (!rewards.is("float64") || rewards.shape.length !== 1) {
    const got = `${rewards.dtype} [${rewards.shape.join(", ")}]`;
    throw new Error(`${field}: ${mismatch("float64 of one dimension", got)}`);
  }
  return rewards.data;
}

function columnsOf(tensors: readonly NamedTensor[]): Columns {
  const columns = new Columns();
  addNamedTensors(columns, tensors);
  return columns;
}
