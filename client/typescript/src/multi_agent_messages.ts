/**
 * Batches of many agents from messages of the wire.
 *
 * @packageDocumentation
 */

import { batchFromMessage } from "./batch_messages.js";
import { mismatch } from "./errors.js";
import type {
  MultiAgentBatch as MultiAgentBatchMessage,
  PolicyBatch as PolicyBatchMessage,
} from "./generated/rollserve/v1/multi_agent_batch_pb.js";
import { MultiAgentBatch, PolicyBatch } from "./multi_agent_batch.js";
import { tensorFromMessage } from "./tensor_messages.js";

/**
 * Return the batch in a message, whose columns refer to the message's bytes unless they are compressed.
 *
 * @throws Error - A malformed message.
 */
export function multiAgentBatchFromMessage(message: MultiAgentBatchMessage): MultiAgentBatch {
  const policies = message.policies.map((policy) => policyFromMessage(policy, message.agents.length));
  const { agentStepCounts, globalStates, lastGlobalStates } = message;
  return new MultiAgentBatch({
    agents: [...message.agents],
    episodeIndices: BigUint64Array.from(message.episodeIndices),
    firstSteps: BigUint64Array.from(message.firstSteps),
    lengths: Uint32Array.from(message.lengths),
    terminated: Uint8Array.from(message.terminated, Number),
    truncated: Uint8Array.from(message.truncated, Number),
    // Older servers do not tell the numbers.
    agentStepCounts: Uint32Array.from(
      agentStepCounts.length > 0 ? agentStepCounts : deliveredStepCounts(message.episodeIndices, policies),
    ),
    policies,
    globalStates: globalStates && tensorFromMessage(globalStates),
    lastGlobalStates: lastGlobalStates && tensorFromMessage(lastGlobalStates),
  });
}

function policyFromMessage(message: PolicyBatchMessage, numAgents: number): PolicyBatch {
  if (message.batch === undefined) {
    throw new Error(`policies: ${mismatch("a batch", "none")}`);
  }
  for (const position of message.agentPositions) {
    if (position >= numAgents) {
      throw new Error(`agentPositions: ${mismatch(`positions among ${String(numAgents)} agents`, position)}`);
    }
  }
  const batch = batchFromMessage(message.batch, 0n);
  const hasRewards = message.rewardsBefore.length > 0;
  const rewardsBefore = hasRewards ? Float64Array.from(message.rewardsBefore) : new Float64Array(batch.numSegments);
  // Where segments begin within lives, their returns before have the rewards.
  const areReturns = rewardsBefore.length === batch.numSegments && batch.firstSteps.every((step) => step === 0n);
  return new PolicyBatch({
    policy: message.policy,
    batch: hasRewards && areReturns ? batch.with({ returnsBefore: rewardsBefore.slice() }) : batch,
    agentPositions: Uint32Array.from(message.agentPositions),
    envSteps: Uint32Array.from(message.environmentSteps),
    rewardsBefore,
  });
}

/** Return the number of the agents' steps in each episode that are delivered. */
function deliveredStepCounts(episodeIndices: readonly bigint[], policies: readonly PolicyBatch[]): number[] {
  const counts = new Map<bigint, number>();
  for (const { batch } of policies) {
    batch.episodeIndices.forEach((index, segment) => {
      counts.set(index, (counts.get(index) ?? 0) + (batch.lengths[segment] ?? 0));
    });
  }
  return episodeIndices.map((index) => counts.get(index) ?? 0);
}
