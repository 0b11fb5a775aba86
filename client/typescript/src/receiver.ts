/**
 * Reception of a call's messages, over all attempts at the call.
 *
 * @packageDocumentation
 */

import { setTimeout as sleep } from "node:timers/promises";

import type { ServiceError } from "@grpc/grpc-js";

import type { Connection, RpcName } from "./connection.js";
import { CancelledError, RollserveError } from "./errors.js";
import type { RawCall } from "./raw_call.js";
import { codeOf, errorFromRpc, isRpcError, reasonOf } from "./rpc_errors.js";
import type { TimeLimits } from "./time_limits.js";

/** What a receiver asks of the reader of a call's messages. */
export interface Attempts {
  /** Whether the call's beginning has arrived. */
  readonly hasBegun: boolean;
  /** Whether a call that has begun can be made again. */
  readonly canRepeat: boolean;
  /** What the server last said that the call waits for; empty for nothing. */
  readonly waitingFor: string;
  /** Whether the client can send further requests; false by default. */
  readonly staysOpen?: boolean;
  /** Reasons after which the call is not made again; none by default. */
  readonly finalReasons?: readonly string[];
  /** Return the serialized request of the next attempt. */
  request(): Uint8Array;
  /** Return the requests that follow it at once; none by default. */
  furtherRequests?(): readonly Uint8Array[];
}

// The server itself has tried again before it sends the first three, and has lost a worker each time.
const FINAL_REASONS: readonly string[] = ["WORKER_LOST_AGAIN", "WORKER_HUNG", "WORKER_OUT_OF_MEMORY", "TLS_FAILED"];
// The next server at the address need not have these reasons.
const ELSEWHERE: readonly string[] = ["", "SERVER_STOPPING", "SAMPLER_TAKEN", "JOURNAL_LOST"];
const FIRST_PAUSE_SECONDS = 0.1;
const MAX_PAUSE_SECONDS = 1;

/**
 * The messages of a call. If the connection is lost, the call is made again, up to `timeout` seconds after the first
 * interruption without new data since.
 *
 * A call that begins while the server is away or stopping, or loses it before its own beginning, waits for it, or for
 * the next one, if the server has answered before. Otherwise the address may be wrong, so the call fails at once.
 */
export class Receiver {
  readonly #connection: Connection;
  readonly #rpc: RpcName;
  readonly #attempts: Attempts;
  readonly #limits: TimeLimits;
  readonly #signal: AbortSignal | undefined;
  readonly #stopped = new AbortController();
  readonly #onAbort = (): void => {
    this.stop(abortError(this.#signal?.reason));
  };
  #call: RawCall | undefined;
  #before: RollserveError | undefined;
  #toldByServer: RollserveError | undefined;
  #interruptedAt: number | undefined;
  #pauseSeconds = FIRST_PAUSE_SECONDS;

  /** Start with the first attempt, so that the server works before the first message is read. */
  constructor(connection: Connection, rpc: RpcName, attempts: Attempts, limits: TimeLimits, signal?: AbortSignal) {
    this.#connection = connection;
    this.#rpc = rpc;
    this.#attempts = attempts;
    this.#limits = limits;
    this.#signal = signal;
    if (signal?.aborted === true) {
      throw abortError(signal.reason);
    }
    signal?.addEventListener("abort", this.#onAbort, { once: true });
    this.#start();
  }

  /**
   * Return the next message; undefined after the last one.
   *
   * @throws RollserveError - The call failed, in an attempt after which there is none.
   */
  async next(): Promise<Uint8Array | undefined> {
    for (;;) {
      try {
        const message = await this.#receive();
        if (message === undefined) {
          this.#end();
        } else {
          this.#connection.wasMade = true;
        }
        return message;
      } catch (error) {
        try {
          await this.#pauseAfter(error);
          this.#start();
        } catch (final) {
          this.#end();
          throw final;
        }
      }
    }
  }

  /** Record that new data has arrived. Progress does not count, because a server may report it in each attempt. */
  advance(): void {
    this.#interruptedAt = undefined;
    this.#pauseSeconds = FIRST_PAUSE_SECONDS;
  }

  /** Send another request in the present attempt; undefined closes the client's side of the call. */
  send(request: Uint8Array | undefined): void {
    this.#call?.send(request);
  }

  /** End the call at once; readers get the error. */
  stop(error: RollserveError): void {
    this.#stopped.abort(error);
    this.#call?.cancel(error);
    this.#end();
  }

  #start(): void {
    const { remaining } = this.#limits;
    this.#call = this.#connection.call(this.#rpc, this.#attempts.request(), remaining, this.#attempts.staysOpen);
    for (const request of this.#attempts.furtherRequests?.() ?? []) {
      this.#call.send(request);
    }
  }

  #end(): void {
    this.#signal?.removeEventListener("abort", this.#onAbort);
  }

  async #receive(): Promise<Uint8Array | undefined> {
    this.#stopped.signal.throwIfAborted();
    const call = this.#call;
    const milliseconds = this.#limits.timerMilliseconds;
    if (milliseconds === undefined) {
      return call?.next();
    }
    const timer = setTimeout(() => {
      call?.cancel(this.#limits.silenceError(this.#before, this.#attempts.waitingFor));
    }, milliseconds);
    try {
      return await call?.next();
    } finally {
      clearTimeout(timer);
    }
  }

  /** Wait before the next attempt; throw the client's error if there is none. */
  async #pauseAfter(error: unknown): Promise<void> {
    if (!isRpcError(error)) {
      throw error;
    }
    if (!this.#canContinueAfter(error)) {
      throw this.#limits.errorFrom(error, this.#before, this.#attempts.waitingFor);
    }
    const now = performance.now();
    this.#interruptedAt ??= now;
    const left = this.#limits.timeout - (now - this.#interruptedAt) / 1000;
    const interruption = errorFromRpc(error);
    if (interruption.reason !== "") {
      this.#toldByServer = interruption;
    } else if (this.#toldByServer !== undefined) {
      interruption.cause = this.#toldByServer; // such as SERVER_STOPPING, after which nobody answers
    }
    if (left <= 0) {
      throw interruption;
    }
    this.#before = interruption;
    const jittered = this.#pauseSeconds * (0.5 + Math.random() / 2);
    const seconds = Math.min(jittered, left, this.#limits.remaining ?? Infinity);
    this.#pauseSeconds = Math.min(2 * this.#pauseSeconds, MAX_PAUSE_SECONDS);
    try {
      await sleep(1000 * seconds, undefined, { signal: this.#stopped.signal });
    } catch {
      throw this.#stopped.signal.reason;
    }
  }

  /** Whether another attempt can help after an error. */
  #canContinueAfter(error: ServiceError): boolean {
    const { hasBegun, canRepeat, finalReasons = [] } = this.#attempts;
    if (codeOf(error) !== "UNAVAILABLE" || [...FINAL_REASONS, ...finalReasons].includes(reasonOf(error))) {
      return false;
    }
    // Before the beginning, other errors of the server itself are final: it has not begun the call.
    return hasBegun ? canRepeat : this.#connection.wasMade && ELSEWHERE.includes(reasonOf(error));
  }
}

function abortError(cause: unknown): CancelledError {
  return new CancelledError("the call was cancelled by its signal", { code: "CANCELLED", cause });
}
