/**
 * Sessions in which the client acts, step by step.
 *
 * @packageDocumentation
 */

import { create, fromBinary, toBinary, type MessageInitShape } from "@bufbuild/protobuf";

import { accountFromMessage, type Account } from "./account.js";
import { batchFromMessage } from "./batch_messages.js";
import { closedError, type Connection } from "./connection.js";
import { actionsToMessage, rowColumns, type Actions, type RowForms, type RowValues } from "./driven_actions.js";
import { drivenStepFromMessage, type DrivenStep } from "./driven_step.js";
import type { EpisodeBatch } from "./episode_batch.js";
import { InvalidArgumentError, malformed, mismatch, PreconditionError, readingError } from "./errors.js";
import type { Beginning } from "./generated/rollserve/v1/episode_batch_pb.js";
import {
  DriveEnvironmentsRequestSchema,
  DriveEnvironmentsResponseSchema,
  type DriveSpec,
  type StreamRound,
} from "./generated/rollserve/v1/sampler_service_pb.js";
import { joinRounds } from "./joining.js";
import type { DriveOptions } from "./options.js";
import { Receiver, type Attempts } from "./receiver.js";
import { leafForms, spaceFromMessage, type Space } from "./spaces.js";
import type { TimeLimits } from "./time_limits.js";
import { warnOf } from "./warnings.js";

type RequestContent = NonNullable<MessageInitShape<typeof DriveEnvironmentsRequestSchema>["content"]>;

/** What comes with the actions of a step. */
export interface StepOptions {
  /** Values of all rows, for each of the infos that the session was begun with. */
  readonly agentInfos?: ReadonlyMap<string, RowValues> | Readonly<Record<string, RowValues>> | undefined;
  /**
   * Whether each row makes no step, whatever its action is: only rows whose present episode has made none, and not
   * where rows are stepped at once. By default, all rows make a step.
   */
  readonly idle?: ArrayLike<boolean | number> | undefined;
}

/**
 * A session: the client acts in the rows of a sampler, step by step, in place of its agent. The server records what
 * happens.
 *
 * Call one method at a time. `end` ends the session, and returns its account; closing the session, or disposing of it,
 * cancels it unless it has ended.
 *
 * @example
 * ```ts
 * await using session = await sampler.drive({ seed: 7, fragmentLength: 128 });
 * let step = await session.observe();
 * for (let number = 0; number < 128; number += 1) {
 *   step = await session.step(policy(step.observations));
 * }
 * learn(await session.batch());
 * console.log(await session.end());
 * ```
 */
export class Session implements AsyncDisposable {
  /** The number of rows of all workers. */
  readonly numRows: number;
  /** The space of a row's observations. */
  readonly observationSpace: Space;
  /** The space of a row's actions. */
  readonly actionSpace: Space;

  readonly #receiver: Receiver;
  readonly #reader: SessionReader;
  readonly #actionForms: RowForms;
  readonly #infoForms: RowForms;
  #numAskedSteps = 0;
  #hasEnded = false;

  private constructor(receiver: Receiver, reader: SessionReader, beginning: Beginning, infoForms: RowForms) {
    this.numRows = Number(beginning.rowCount);
    this.observationSpace = spaceFromMessage(beginning.observationSpace);
    this.actionSpace = spaceFromMessage(beginning.actionSpace);
    this.#receiver = receiver;
    this.#reader = reader;
    this.#actionForms = leafForms(this.actionSpace);
    this.#infoForms = infoForms;
  }

  /**
   * Start the call, and return the session once it has begun.
   *
   * @throws RollserveError - The session did not begin.
   *
   * @internal
   */
  static async begin(
    connection: Connection,
    spec: DriveSpec,
    limits: TimeLimits,
    { agentInfos = {}, signal }: DriveOptions,
  ): Promise<Session> {
    const reader = new SessionReader(spec);
    const receiver = new Receiver(connection, "DriveEnvironments", reader, limits, signal);
    try {
      while (reader.beginning === undefined) {
        reader.take((await receiver.next()) ?? raise(malformed("the session ended without its beginning")));
      }
      return new Session(receiver, reader, reader.beginning, new Map(Object.entries(agentInfos)));
    } catch (error) {
      receiver.stop(closedError("session"));
      throw readingError(error);
    }
  }

  /**
   * The account of the session, after its end.
   *
   * @throws InvalidArgumentError - The session has not ended.
   */
  get account(): Account {
    if (!this.#hasEnded) {
      const got = "one that goes on, was closed or has failed";
      throw InvalidArgumentError.of("account", "a session that has ended", got, "call end()");
    }
    return this.#reader.account();
  }

  /**
   * Return the present step, with the observations that the next actions are for.
   *
   * @throws RollserveError - The session failed.
   */
  async observe(): Promise<DrivenStep> {
    return this.#read(() => this.#reader.step);
  }

  /**
   * Act in all rows, and return what follows.
   *
   * Actions and infos can be lists of numbers or typed arrays of other types than the environment's, if that can hold
   * their values.
   *
   * @param actions - (N, *A). The actions of all rows; by the names of the leaves where the action space has several.
   * @param options - See {@link StepOptions}.
   * @throws InvalidArgumentError - Actions or infos of another form, or outside the action space. No row has stepped.
   * @throws RollserveError - The session failed.
   */
  async step(actions: Actions, options: StepOptions = {}): Promise<DrivenStep> {
    const present = await this.observe();
    const columns = rowColumns("actions", actions, this.#actionForms, this.numRows);
    const infos = rowColumns("agentInfos", options.agentInfos ?? {}, this.#infoForms, this.numRows);
    const idle = Array.from(options.idle ?? [], Boolean);
    if (idle.length !== 0 && idle.length !== this.numRows) {
      throw InvalidArgumentError.of("idle", `${String(this.numRows)} truth values`, idle.length);
    }
    this.#send({ case: "actions", value: actionsToMessage(present.number, columns, infos, idle) });
    this.#numAskedSteps += this.numRows - idle.filter(Boolean).length;
    return this.#read(() => (this.#reader.step === present ? undefined : this.#reader.step));
  }

  /**
   * End the present fragments, and return all that was recorded since the last call.
   *
   * @throws PreconditionError - Nothing was recorded.
   * @throws RollserveError - The session failed.
   */
  async batch(): Promise<EpisodeBatch> {
    const hasAll = (): boolean => this.#reader.isDiscarding || this.#reader.numRecordedSteps >= this.#numAskedSteps;
    if (!hasAll()) {
      this.#send({ case: "fragmentEnd", value: {} });
      await this.#read(() => hasAll() || undefined);
    }
    return this.#reader.takeBatch();
  }

  /**
   * End the session, and return its account. `batch` then has what was recorded and not taken.
   *
   * @throws RollserveError - The session failed.
   */
  async end(): Promise<Account> {
    this.#receiver.send(undefined);
    while (!this.#hasEnded) {
      await this.#receive();
    }
    return this.account;
  }

  /** Cancel the session unless it has ended. */
  close(): void {
    if (!this.#hasEnded) {
      this.#receiver.stop(closedError("session"));
    }
  }

  /** Close the session. */
  [Symbol.asyncDispose](): Promise<void> {
    this.close();
    return Promise.resolve();
  }

  #send(content: RequestContent): void {
    this.#receiver.send(toBinary(DriveEnvironmentsRequestSchema, create(DriveEnvironmentsRequestSchema, { content })));
  }

  /** Read messages until there is something to return. */
  async #read<T>(found: () => T | undefined): Promise<T> {
    for (let result = found(); ; result = found()) {
      if (result !== undefined) {
        return result;
      }
      if (this.#hasEnded) {
        const text = mismatch("one that goes on", "one that has ended");
        throw new PreconditionError(`session: ${text}`, { code: "FAILED_PRECONDITION", field: "session" });
      }
      await this.#receive();
    }
  }

  /** Read a message, or the end of the session. */
  async #receive(): Promise<void> {
    const message = await this.#receiver.next();
    if (message === undefined) {
      this.#hasEnded = true;
      this.#reader.account();
      return;
    }
    try {
      this.#reader.take(message);
    } catch (error) {
      this.close();
      throw error;
    }
  }
}

/** The reader of a session's messages. */
class SessionReader implements Attempts {
  readonly canRepeat = false;
  readonly staysOpen = true;
  waitingFor = "";
  beginning: Beginning | undefined;
  step: DrivenStep | undefined;
  numRecordedSteps = 0;

  readonly #spec: DriveSpec;
  #batches: EpisodeBatch[] = [];
  #rounds: EpisodeBatch[][] = [];
  #account: Account | undefined;

  constructor(spec: DriveSpec) {
    this.#spec = spec;
  }

  get hasBegun(): boolean {
    return this.beginning !== undefined;
  }

  /** Whether nothing is recorded. */
  get isDiscarding(): boolean {
    return this.#spec.options?.blackhole ?? false;
  }

  request(): Uint8Array {
    const content = { case: "spec", value: this.#spec } as const;
    return toBinary(DriveEnvironmentsRequestSchema, create(DriveEnvironmentsRequestSchema, { content }));
  }

  /**
   * Take a message of the session.
   *
   * @throws ServerError - A malformed message.
   */
  take(message: Uint8Array): void {
    try {
      this.#take(message);
    } catch (error) {
      throw readingError(error);
    }
  }

  /**
   * Return the account of the session, after its end.
   *
   * @throws ServerError - The session ended without an account.
   */
  account(): Account {
    return this.#account ?? raise(malformed("the session ended without its account"));
  }

  /**
   * Return what was recorded and not taken.
   *
   * @throws PreconditionError - Nothing was.
   */
  takeBatch(): EpisodeBatch {
    const rounds = this.#rounds;
    if (rounds.length === 0) {
      const text = mismatch("steps that are recorded and not taken", "none");
      throw new PreconditionError(`batch: ${text}`, { code: "FAILED_PRECONDITION", field: "batch" });
    }
    this.#rounds = [];
    return joinRounds(rounds);
  }

  #take(message: Uint8Array): void {
    const { content } = fromBinary(DriveEnvironmentsResponseSchema, message, { readUnknownFields: false });
    switch (content.case) {
      case "beginning":
        this.beginning = content.value;
        break;
      case "step":
        this.step = drivenStepFromMessage(content.value);
        this.waitingFor = "";
        break;
      case "batch":
        this.#batches.push(batchFromMessage(content.value, this.beginning?.rowCount ?? 0n));
        break;
      case "round":
        this.#endRound(content.value);
        break;
      case "progress":
        this.waitingFor = content.value.waitingFor;
        warnOf(content.value);
        break;
      case "account":
        this.#account = accountFromMessage(content.value);
        break;
      case "shared":
        throw new Error("shared: expected a message of the call itself, got one in shared memory");
      default: // content of a later version, which a client may leave out
    }
  }

  #endRound({ stepCount }: StreamRound): void {
    const numSteps = this.#batches.reduce((sum, batch) => sum + batch.numSteps, 0);
    if (BigInt(numSteps) !== stepCount) {
      throw new Error(`round: ${mismatch(`${String(stepCount)} steps`, numSteps)}`);
    }
    this.numRecordedSteps += numSteps;
    this.#rounds.push(this.#batches);
    this.#batches = [];
  }
}

function raise(error: Error): never {
  throw error;
}
