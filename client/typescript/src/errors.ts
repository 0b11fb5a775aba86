/**
 * Errors of the client, grouped by what the caller can do about them.
 *
 * ```text
 * RollserveError
 * ├── InvalidArgumentError   change the request: a field, a name or a permission is wrong
 * │   └── AccessError        get a token, or one with the scope that the message names
 * ├── PreconditionError      bring the sampler into the right state, then call again
 * ├── LimitError             ask for less, or have a limit raised
 * ├── UnavailableError       call again later: the server is out of reach, starting or stopping
 * ├── StoppedError           the call ended early
 * │   ├── CancelledError     the caller cancelled it
 * │   └── DeadlineError      its deadline passed, or it made no progress for its timeout
 * └── ServerError            a fault of the server or of an environment: look at the server's log
 * ```
 *
 * @packageDocumentation
 */

import type { status } from "@grpc/grpc-js";
import type { ErrorReason } from "./generated/rollserve/v1/errors_pb.js";

/** The name of a gRPC status code, such as `NOT_FOUND`. */
export type StatusCode = Exclude<keyof typeof status, "OK">;

/** A reason that this client knows, as errors.proto describes it, such as `NO_AGENT`. */
export type KnownReason = Exclude<keyof typeof ErrorReason, "UNSPECIFIED">;

/** A reason: a known one, the text of a newer server's, or empty if the error is gRPC's own. */
export type Reason = KnownReason | "" | (string & {});

/** What an error says beside its message. */
export interface ErrorDetails {
  /** The gRPC status code. */
  readonly code: StatusCode;
  /** The reason; empty by default. */
  readonly reason?: Reason | undefined;
  /** The path of the field at fault; empty by default. */
  readonly field?: string | undefined;
  /** The name of the request in the server's log; empty by default. */
  readonly requestId?: string | undefined;
  /** The error that led to this one. */
  readonly cause?: unknown;
}

/**
 * The base class of all errors of calls. Its subclasses say what the caller can do; `reason` says what happened. If a
 * call was made again in vain, `cause` can be the error of an earlier attempt.
 */
export class RollserveError extends Error {
  /** The gRPC status code. */
  readonly code: StatusCode;
  /** The reason; plain text if it is a newer server's; empty if the error is gRPC's own. */
  readonly reason: Reason;
  /** The path of the argument or of the request's field at fault; empty if no field is. */
  readonly field: string;
  /** The name of the request in the server's log; empty if the error is gRPC's own, or the client's. */
  readonly requestId: string;

  /** Make an error; its message reads `field: expected …, got …` where a field is at fault. */
  constructor(message: string, details: ErrorDetails) {
    super(message, details.cause === undefined ? {} : { cause: details.cause });
    this.name = new.target.name;
    this.code = details.code;
    this.reason = details.reason ?? "";
    this.field = details.field ?? "";
    this.requestId = details.requestId ?? "";
  }
}

/** The error of a request that cannot be met: a value, a name or a permission is wrong. Change the request. */
export class InvalidArgumentError extends RollserveError {
  /** Return the error for an argument. */
  static of(field: string, expected: string, got: unknown, hint = ""): InvalidArgumentError {
    const message = `${field}: ${mismatch(expected, got)}${hint === "" ? "" : `: ${hint}`}`;
    return new InvalidArgumentError(message, { code: "INVALID_ARGUMENT", reason: "INVALID_VALUE", field });
  }
}

/** The error of a client that does not prove who it is, or lacks the scope that the message names. */
export class AccessError extends InvalidArgumentError {}

/** The error of a sampler that is not in the state that the request needs, for example because it has no agent yet. */
export class PreconditionError extends RollserveError {}

/** The error of a request or a result that is larger than a limit allows. */
export class LimitError extends RollserveError {}

/** The error of a server that is out of reach, starting or stopping, or has lost a worker. Call again later. */
export class UnavailableError extends RollserveError {}

/** The error of a call that ended early, because of its caller or of a time limit. */
export class StoppedError extends RollserveError {}

/** The error of a call that its caller cancelled. */
export class CancelledError extends StoppedError {}

/** The error of a call whose deadline passed, or that made no progress for its timeout (`NO_PROGRESS`). */
export class DeadlineError extends StoppedError {}

/** The error of the server or of an environment. The server's log has the details. */
export class ServerError extends RollserveError {}

/** Return the text of an error about a value, such as `expected a positive integer, got -3`. */
export function mismatch(expected: string, got: unknown): string {
  return `expected ${expected}, got ${String(got)}`;
}

/** Return the error for a stream that violates the wire contract. */
export function malformed(message: string): ServerError {
  return new ServerError(`malformed stream: ${message}`, { code: "DATA_LOSS" });
}

/** Return an error of the client as it is, and any other one as that of a stream that violates the wire contract. */
export function readingError(error: unknown): RollserveError {
  return error instanceof RollserveError ? error : malformed(error instanceof Error ? error.message : String(error));
}
