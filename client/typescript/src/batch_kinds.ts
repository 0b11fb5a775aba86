/**
 * The two kinds of batches that calls deliver: of environments with one agent, and with many.
 *
 * @packageDocumentation
 */

import type { Account } from "./account.js";
import { batchFromMessage } from "./batch_messages.js";
import type { EpisodeBatch } from "./episode_batch.js";
import { InvalidArgumentError, readingError } from "./errors.js";
import type { EpisodeBatch as BatchMessage } from "./generated/rollserve/v1/episode_batch_pb.js";
import type { MultiAgentBatch as MultiAgentBatchMessage } from "./generated/rollserve/v1/multi_agent_batch_pb.js";
import { checkAccount, joinBatches, type Counts } from "./joining.js";
import { concatenateMany, type MultiAgentBatch } from "./multi_agent_batch.js";
import { multiAgentBatchFromMessage } from "./multi_agent_messages.js";

/** A batch of a stream, of one agent or of many. */
export type AnyBatch = EpisodeBatch | MultiAgentBatch;

/** What a message of a stream holds. */
export type BatchContent =
  | { readonly case: "batch"; readonly value: BatchMessage }
  | { readonly case: "multiAgentBatch"; readonly value: MultiAgentBatchMessage };

/** How batches of one of the kinds are read and joined. */
export interface BatchKind<B extends AnyBatch> {
  /**
   * Return the batch in a message.
   *
   * @throws InvalidArgumentError - A batch of the other kind.
   * @throws Error - A malformed message.
   */
  read(content: BatchContent, rowCount: bigint): B;
  /**
   * Return the batches of a stream as one, with the account.
   *
   * @throws ServerError - Batches that do not fit together, or an account of other numbers of episodes or steps.
   */
  join(batches: readonly B[], account: Account, before?: Counts): B;
}

/** Batches of environments with one agent. */
export const OF_ONE_AGENT: BatchKind<EpisodeBatch> = {
  read(content, rowCount) {
    if (content.case !== "batch") {
      const hint = "call the methods of sampler.multiAgent";
      throw InvalidArgumentError.of("env", "an environment with one agent", "one with many agents", hint);
    }
    return batchFromMessage(content.value, rowCount);
  },
  join: joinBatches,
};

/** Batches of environments with many agents. */
export const OF_MANY_AGENTS: BatchKind<MultiAgentBatch> = {
  read(content) {
    if (content.case !== "multiAgentBatch") {
      const hint = "call the methods of the sampler itself";
      throw InvalidArgumentError.of("env", "an environment with many agents", "one with one agent", hint);
    }
    return multiAgentBatchFromMessage(content.value);
  },
  join(batches, account, before) {
    let joined: MultiAgentBatch;
    try {
      joined = concatenateMany(batches).joined();
    } catch (error) {
      throw readingError(error);
    }
    checkAccount(joined, account, before);
    return joined.withAccount(account);
  },
};
