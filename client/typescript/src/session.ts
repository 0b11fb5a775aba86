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
  type DrivenActions,
  type DriveResumption,
  type DriveSpec,
  type StreamRound,
} from "./generated/rollserve/v1/sampler_service_pb.js";
import { joinRounds } from "./joining.js";
import type { DriveOptions } from "./options.js";
import { Receiver, type Attempts } from "./receiver.js";
import { SessionPosition } from "./session_position.js";
import { leafForms, spaceFromMessage, type Space } from "./spaces.js";
import type { TimeLimits } from "./time_limits.js";
import { warnOf } from "./warnings.js";

type RequestContent = NonNullable<MessageInitShape<typeof DriveEnvironmentsRequestSchema>["content"]>;
type First =
  | { readonly case: "spec"; readonly value: DriveSpec }
  | { readonly case: "resumption"; readonly value: DriveResumption };

const FRAGMENT_END: RequestContent = { case: "fragmentEnd", value: {} };
const SESSION_END: RequestContent = { case: "sessionEnd", value: {} };

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

/** Which rows act, and what comes with their actions. */
export interface SendOptions {
  /** The rows that act, each of which waits for it; by default, those of the last step. */
  readonly rows?: ArrayLike<number> | undefined;
  /** Values of these rows, for each of the infos that the session was begun with. */
  readonly agentInfos?: ReadonlyMap<string, RowValues> | Readonly<Record<string, RowValues>> | undefined;
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
  /** What takes a session with a lease up again, see `Sampler.resumeSession`; empty for one without. */
  readonly token: string;

  readonly #receiver: Receiver;
  readonly #reader: SessionReader;
  readonly #actionForms: RowForms;
  readonly #infoForms: RowForms;
  readonly #isReady: boolean;
  #step: DrivenStep | undefined;
  #hasEnded = false;

  private constructor(
    receiver: Receiver,
    reader: SessionReader,
    beginning: Beginning,
    infoForms: RowForms,
    isReady: boolean,
  ) {
    this.numRows = Number(beginning.rowCount);
    this.token = beginning.sessionToken;
    this.observationSpace = spaceFromMessage(beginning.observationSpace);
    this.actionSpace = spaceFromMessage(beginning.actionSpace);
    this.#receiver = receiver;
    this.#reader = reader;
    this.#actionForms = leafForms(this.actionSpace);
    this.#infoForms = infoForms;
    this.#isReady = isReady;
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
    first: First,
    limits: TimeLimits,
    { agentInfos = {}, minReady = 0, record = true, signal }: DriveOptions,
  ): Promise<Session> {
    const isReady = BigInt(minReady) > 0n;
    const reader = new SessionReader(first, isReady, !record);
    const receiver = new Receiver(connection, "DriveEnvironments", reader, limits, signal);
    try {
      while (reader.beginning === undefined) {
        reader.take((await receiver.next()) ?? raise(malformed("the session ended without its beginning")));
      }
      return new Session(receiver, reader, reader.beginning, new Map(Object.entries(agentInfos)), isReady);
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
    return this.#step ?? this.#next();
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
    if (this.#isReady) {
      throw InvalidArgumentError.of("step", "a session whose rows step together", "minReady", "call send() and recv()");
    }
    const present = await this.observe();
    const columns = rowColumns("actions", actions, this.#actionForms, this.numRows);
    const infos = rowColumns("agentInfos", options.agentInfos ?? {}, this.#infoForms, this.numRows);
    const idle = Array.from(options.idle ?? [], Boolean);
    if (idle.length !== 0 && idle.length !== this.numRows) {
      throw InvalidArgumentError.of("idle", `${String(this.numRows)} truth values`, idle.length);
    }
    const message = actionsToMessage(present.number, columns, infos, { idle });
    this.#act(message, this.numRows - idle.filter(Boolean).length);
    return this.#next();
  }

  /**
   * Act in rows of a session with `minReady` that wait for it, without waiting for what follows: `recv` returns that.
   *
   * @param actions - (K, *A). The actions of these rows, as `step` takes them.
   * @param options - See {@link SendOptions}.
   * @throws InvalidArgumentError - Rows that do not wait for it; actions or infos of another form. Nothing is sent.
   * @throws RollserveError - The session failed.
   */
  async send(actions: Actions, options: SendOptions = {}): Promise<void> {
    this.#checkReady("send");
    const present = await this.observe();
    const rows = Array.from(options.rows ?? present.rows, Number);
    const columns = rowColumns("actions", actions, this.#actionForms, rows.length);
    const infos = rowColumns("agentInfos", options.agentInfos ?? {}, this.#infoForms, rows.length);
    const rowStepCounts = this.#reader.position.ask(rows);
    const message = actionsToMessage(present.number, columns, infos, { rows: rows.map(BigInt), rowStepCounts });
    this.#act(message, rows.length);
  }

  /**
   * Return the next step of a session with `minReady`, as soon as so many rows are ready.
   *
   * @throws RollserveError - The session failed; also because of actions that were sent.
   */
  async recv(): Promise<DrivenStep> {
    this.#checkReady("recv");
    return this.#next();
  }

  /**
   * End the present fragments, and return all that was recorded since the last call.
   *
   * @throws PreconditionError - Nothing was recorded.
   * @throws RollserveError - The session failed.
   */
  async batch(): Promise<EpisodeBatch> {
    if (!this.#reader.hasAll) {
      this.#reader.wantsFragmentEnd = true;
      this.#send(FRAGMENT_END);
      await this.#read(() => this.#reader.hasAll || undefined);
    }
    return this.#reader.takeBatch();
  }

  /**
   * End the session, and return its account. `batch` then has what was recorded and not taken.
   *
   * @throws RollserveError - The session failed.
   */
  async end(): Promise<Account> {
    this.#reader.wantsEnd = true;
    if (this.#reader.lasts) {
      this.#send(SESSION_END); // closing the requests looks as if the connection were lost
    } else {
      this.#receiver.send(undefined);
    }
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

  #checkReady(method: string): void {
    if (!this.#isReady) {
      throw InvalidArgumentError.of(method, "a session with minReady", "one whose rows step together", "call step()");
    }
  }

  /** Return the first step that was received and not returned. */
  async #next(): Promise<DrivenStep> {
    this.#step = await this.#read(() => this.#reader.nextStep());
    return this.#step;
  }

  #act(message: DrivenActions, numSteps: number): void {
    this.#reader.ask(message, numSteps);
    this.#send({ case: "actions", value: message });
  }

  #send(content: RequestContent): void {
    this.#receiver.send(serialized(content));
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
    const { hasAccount } = this.#reader;
    let message: Uint8Array | undefined;
    try {
      message = await this.#receiver.next();
    } catch (error) {
      if (!hasAccount) {
        throw error;
      }
    }
    if (message === undefined) {
      this.#hasEnded = true;
      this.#reader.account();
      return;
    }
    try {
      if (this.#reader.take(message)) {
        this.#receiver.advance();
      }
    } catch (error) {
      this.close();
      throw error;
    }
    if (this.#reader.lasts && this.#reader.hasAccount && !hasAccount) {
      this.#send({ case: "sessionEnd", value: { hasAccount: true } }); // after which the server forgets the session
    }
  }
}

/** The reader of a session's messages, over all its streams. */
class SessionReader implements Attempts {
  readonly staysOpen = true;
  readonly finalReasons = ["CLIENT_STALLED"];
  /** Whether the session has a lease. */
  readonly lasts: boolean;
  readonly position: SessionPosition;
  waitingFor = "";
  beginning: Beginning | undefined;
  /** Whether the client has asked for the end of the fragments, or of the session. */
  wantsFragmentEnd = false;
  wantsEnd = false;

  readonly #first: First;
  readonly #isReady: boolean;
  readonly #isDiscarding: boolean;
  readonly #steps: DrivenStep[] = []; // that were received and not returned
  #outstanding: DrivenActions[] = []; // of a session with a lease, those that no step has followed
  #numUnrecorded = 0; // steps that rows were asked to make, and that no round has brought
  #numRounds = 0n; // of the session, up to the last one that was received
  #batches: EpisodeBatch[] = [];
  #rounds: EpisodeBatch[][] = [];
  #account: Account | undefined;

  constructor(first: First, isReady: boolean, isDiscarding: boolean) {
    this.#first = first;
    this.lasts = first.case === "resumption" || first.value.leaseSeconds > 0;
    this.position = new SessionPosition(isReady);
    this.#isReady = isReady;
    this.#isDiscarding = isDiscarding;
  }

  get hasBegun(): boolean {
    return this.beginning !== undefined;
  }

  get canRepeat(): boolean {
    return this.lasts && !this.hasAccount;
  }

  /** Whether the account has arrived, and so all that comes before. */
  get hasAccount(): boolean {
    return this.#account !== undefined;
  }

  /** Whether rounds have brought all steps, or nothing is recorded. */
  get hasAll(): boolean {
    return this.#isDiscarding || this.#numUnrecorded === 0;
  }

  request(): Uint8Array {
    if (this.beginning === undefined) {
      return serialized(this.#first);
    }
    this.#batches = [];
    const { sampler } = this.#first.value;
    const value = { sampler, token: this.beginning.sessionToken, roundCount: this.#numRounds };
    return serialized({ case: "resumption", value });
  }

  furtherRequests(): Uint8Array[] {
    return [
      ...this.#outstanding.map((value) => serialized({ case: "actions", value })),
      ...(this.wantsFragmentEnd ? [serialized(FRAGMENT_END)] : []),
      ...(this.wantsEnd ? [serialized(SESSION_END)] : []),
    ];
  }

  /** Record actions that are sent, for a number of steps. */
  ask(actions: DrivenActions, numSteps: number): void {
    this.#numUnrecorded += numSteps;
    if (this.lasts) {
      this.#outstanding.push(actions);
    }
  }

  /** Return the first step that was received and not returned; undefined for none. */
  nextStep(): DrivenStep | undefined {
    return this.#steps.shift();
  }

  /**
   * Take a message of the session; return whether it has a step that is new.
   *
   * @throws ServerError - A malformed message.
   */
  take(message: Uint8Array): boolean {
    const numSteps = this.#steps.length;
    try {
      this.#take(message);
      return this.#steps.length > numSteps;
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
        this.position.begin(Number(content.value.rowCount));
        break;
      case "step": {
        const news = this.position.advance(content.value);
        this.waitingFor = "";
        if (news !== undefined) {
          this.#steps.push(drivenStepFromMessage(news, this.#isReady));
          this.#outstanding = this.#outstanding.filter((actions) => !this.position.isBehind(actions));
        }
        break;
      }
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

  #endRound({ roundNumber, stepCount }: StreamRound): void {
    const numSteps = this.#batches.reduce((sum, batch) => sum + batch.numSteps, 0);
    if (BigInt(numSteps) !== stepCount) {
      throw new Error(`round: ${mismatch(`${String(stepCount)} steps`, numSteps)}`);
    }
    this.#numUnrecorded = Math.max(this.#numUnrecorded - numSteps, 0); // another client may have asked for some
    this.#numRounds = roundNumber + 1n;
    this.wantsFragmentEnd = false;
    this.#rounds.push(this.#batches);
    this.#batches = [];
  }
}

function serialized(content: RequestContent): Uint8Array {
  return toBinary(DriveEnvironmentsRequestSchema, create(DriveEnvironmentsRequestSchema, { content }));
}

function raise(error: Error): never {
  throw error;
}
