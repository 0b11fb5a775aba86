/**
 * Batches of a sampling call as they arrive.
 *
 * @packageDocumentation
 */

import { fromBinary, toBinary } from "@bufbuild/protobuf";

import { accountFromMessage, type Account } from "./account.js";
import type { AnyBatch, BatchKind } from "./batch_kinds.js";
import { closedError, type Connection } from "./connection.js";
import type { EpisodeBatch } from "./episode_batch.js";
import { InvalidArgumentError, malformed, readingError } from "./errors.js";
import type { Beginning } from "./generated/rollserve/v1/episode_batch_pb.js";
import {
  ObtainExactEpisodesRequestSchema,
  ObtainSamplesRequestSchema,
  ObtainSamplesResponseSchema,
} from "./generated/rollserve/v1/sampler_service_pb.js";
import { concatenate, countedWith, type Counts } from "./joining.js";
import { Receiver, type Attempts } from "./receiver.js";
import { Resumption, type SamplingRequest } from "./resumption.js";
import type { TimeLimits } from "./time_limits.js";
import { warnOf } from "./warnings.js";

/**
 * The batches of a sampling call, as they arrive. An episode may continue in the next batch.
 *
 * If the connection or the server is lost, the stream continues where it was once both are back. It fails with the last
 * error if no new data has arrived for its timeout since then. Leaving a `for await` loop, or closing the stream,
 * cancels the call unless it is over.
 *
 * @example
 * ```ts
 * const stream = sampler.streamSamples(10_000);
 * for await (const batch of stream) {
 *   console.log(batch.numSteps);
 * }
 * console.log(stream.account.numEpisodes);
 * ```
 */
export class SampleStream<B extends AnyBatch = EpisodeBatch> implements AsyncIterableIterator<B>, AsyncDisposable {
  readonly #kind: BatchKind<B>;
  readonly #reader: StreamReader<B>;
  readonly #receiver: Receiver;
  readonly #blackhole: boolean;
  #isClosed = false;
  #hasEnded = false;
  #read: Counts = { numEpisodes: 0, numSteps: 0 };

  /**
   * Start the call.
   *
   * @internal
   */
  constructor(
    connection: Connection,
    request: SamplingRequest,
    limits: TimeLimits,
    signal: AbortSignal | undefined,
    onBeginning: (beginning: Beginning) => void,
    kind: BatchKind<B>,
  ) {
    const isExact = request.$typeName === "rollserve.v1.ObtainExactEpisodesRequest";
    this.#blackhole = request.options?.blackhole ?? false;
    this.#kind = kind;
    this.#reader = new StreamReader(request, onBeginning, kind);
    this.#receiver = new Receiver(
      connection,
      isExact ? "ObtainExactEpisodes" : "ObtainSamples",
      this.#reader,
      limits,
      signal,
    );
  }

  /** The number of steps that the call has simulated so far, as far as the client knows. */
  get numSimulatedSteps(): bigint {
    return this.#reader.numSimulatedSteps;
  }

  /** The number of episodes that have ended so far, as far as the client knows, including some not delivered. */
  get numEndedEpisodes(): bigint {
    return this.#reader.numEndedEpisodes;
  }

  /**
   * The account of the call, after the end of the stream.
   *
   * @throws InvalidArgumentError - The stream has not been read to its end.
   */
  get account(): Account {
    if (!this.#hasEnded) {
      const got = "one that goes on, was left or has failed";
      throw InvalidArgumentError.of("account", "a stream that was read to its end", got);
    }
    return this.#reader.account();
  }

  /** Return this stream. */
  [Symbol.asyncIterator](): this {
    return this;
  }

  /**
   * Return the next batch.
   *
   * @throws RollserveError - The call failed.
   */
  async next(): Promise<IteratorResult<B, undefined>> {
    for (;;) {
      const batch = this.#reader.nextBatch();
      if (batch !== undefined) {
        this.#receiver.advance();
        this.#read = countedWith(this.#read, batch);
        return { done: false, value: batch };
      }
      if (this.#isClosed) {
        return { done: true, value: undefined };
      }
      const message = await this.#receiver.next();
      if (message === undefined) {
        this.#isClosed = true;
        this.#hasEnded = true;
        this.#reader.account();
      } else {
        this.#take(message);
      }
    }
  }

  /** Close the stream, as `for await` does where its loop is left. */
  return(): Promise<IteratorResult<B, undefined>> {
    this.close();
    return Promise.resolve({ done: true, value: undefined });
  }

  /**
   * Return the rest of the stream as one batch of whole episodes or fragments, with the account of the whole stream.
   *
   * If the first part of an episode was read before, its rest is a segment that begins later.
   *
   * @throws RollserveError - The call failed, or it discards its batches because of `blackhole`.
   */
  async join(): Promise<B> {
    if (this.#blackhole) {
      this.close();
      throw InvalidArgumentError.of("blackhole", "false for a call that returns a batch", true);
    }
    const before = this.#read;
    const batches: B[] = [];
    for await (const batch of this) {
      batches.push(batch);
    }
    return this.#kind.join(batches, this.account, before);
  }

  /** Cancel the call unless it is over. A reader that waits gets a CancelledError; later reads find the end. */
  close(): void {
    if (!this.#isClosed) {
      this.#isClosed = true;
      this.#reader.drop();
      this.#receiver.stop(closedError("stream"));
    }
  }

  /** Close the stream. */
  [Symbol.asyncDispose](): Promise<void> {
    this.close();
    return Promise.resolve();
  }

  /** Read a message; a malformed one ends the call. */
  #take(message: Uint8Array): void {
    try {
      this.#reader.take(message);
    } catch (error) {
      this.close();
      throw error;
    }
  }
}

/** The reader of a stream's messages, over all calls that deliver the stream. */
class StreamReader<B extends AnyBatch> implements Attempts {
  waitingFor = "";
  numSimulatedSteps = 0n;
  numEndedEpisodes = 0n;

  readonly #resumption: Resumption;
  readonly #onBeginning: (beginning: Beginning) => void;
  readonly #kind: BatchKind<B>;
  #batches: B[] = [];
  #numReceivedSteps = 0n;
  #numReceivedEpisodes = 0;
  #rowCount = 0n;
  #account: Account | undefined;

  constructor(request: SamplingRequest, onBeginning: (beginning: Beginning) => void, kind: BatchKind<B>) {
    this.#resumption = new Resumption(request);
    this.#onBeginning = onBeginning;
    this.#kind = kind;
  }

  get hasBegun(): boolean {
    return this.#resumption.hasBegun;
  }

  get canRepeat(): boolean {
    return this.#resumption.isPossible;
  }

  request(): Uint8Array {
    const rest = this.#resumption.rest();
    return rest.$typeName === "rollserve.v1.ObtainExactEpisodesRequest"
      ? toBinary(ObtainExactEpisodesRequestSchema, rest)
      : toBinary(ObtainSamplesRequestSchema, rest);
  }

  /** Return the next batch of the messages that were taken; undefined for none. */
  nextBatch(): B | undefined {
    return this.#batches.shift();
  }

  /** Drop the batches that were not read. */
  drop(): void {
    this.#batches = [];
  }

  /**
   * Take a message of the stream, which joins several responses or is one.
   *
   * @throws ServerError - A malformed message.
   */
  take(message: Uint8Array): void {
    try {
      this.#take(message, true);
    } catch (error) {
      throw readingError(error);
    }
  }

  /**
   * Return the account of the stream, after its end.
   *
   * @throws ServerError - The stream ended without an account.
   */
  account(): Account {
    if (this.#account === undefined) {
      throw malformed("the stream ended without its account");
    }
    return this.#resumption.whole(this.#account);
  }

  #take(response: Uint8Array, mayJoin: boolean): void {
    // Both requests have the same responses, except for the names of the types.
    const { content } = fromBinary(ObtainSamplesResponseSchema, response, { readUnknownFields: false });
    switch (content.case) {
      case "joined":
        if (!mayJoin) {
          throw new Error("joined: expected responses that are not joined themselves, got one that is");
        }
        for (const part of content.value.responses) {
          this.#take(part, false);
        }
        break;
      case "beginning":
        if (!this.#resumption.hasBegun) {
          this.#onBeginning(content.value);
        }
        this.#resumption.begin(content.value);
        this.#rowCount = content.value.rowCount;
        break;
      case "batch":
      case "multiAgentBatch":
        this.#takeBatch(this.#kind.read(content, this.#rowCount));
        break;
      case "progress":
        this.#simulated(content.value.simulatedStepCount);
        this.#ended(content.value.endedEpisodeCount);
        this.waitingFor = content.value.waitingFor;
        warnOf(content.value);
        break;
      case "account":
        this.#account = accountFromMessage(content.value);
        this.numSimulatedSteps = this.#account.numSimulatedSteps;
        break;
      case "shared":
        throw new Error("shared: expected a message of the call itself, got one in shared memory");
      default: // content of a later version, which a client may leave out
    }
  }

  #takeBatch(received: B): void {
    const batch = this.#resumption.take(received);
    this.waitingFor = "";
    if (batch !== undefined) {
      this.#batches.push(batch);
      this.#numReceivedSteps += BigInt(batch.numSteps);
      this.#simulated(this.#numReceivedSteps);
      this.#numReceivedEpisodes += countedWith({ numEpisodes: 0, numSteps: 0 }, batch).numEpisodes;
      this.#ended(BigInt(this.#numReceivedEpisodes));
    }
  }

  #ended(numEpisodes: bigint): void {
    this.numEndedEpisodes = numEpisodes > this.numEndedEpisodes ? numEpisodes : this.numEndedEpisodes;
  }

  #simulated(numSteps: bigint): void {
    this.numSimulatedSteps = numSteps > this.numSimulatedSteps ? numSteps : this.numSimulatedSteps;
  }
}

/**
 * Return the batches of a stream as one batch, where consecutive segments of one episode are one segment.
 *
 * @throws RangeError - No batches, or batches that do not fit together.
 */
export function joinParts(batches: readonly EpisodeBatch[]): EpisodeBatch {
  try {
    return concatenate(batches);
  } catch (error) {
    throw new RangeError(error instanceof Error ? error.message : String(error), { cause: error });
  }
}
