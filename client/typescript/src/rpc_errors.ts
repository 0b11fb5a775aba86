/**
 * Conversion of gRPC's errors to the client's.
 *
 * @packageDocumentation
 */

import { BinaryReader, WireType } from "@bufbuild/protobuf/wire";
import { status, type Metadata, type ServiceError } from "@grpc/grpc-js";

import {
  AccessError,
  CancelledError,
  DeadlineError,
  InvalidArgumentError,
  LimitError,
  mismatch,
  PreconditionError,
  RollserveError,
  ServerError,
  UnavailableError,
  type ErrorDetails,
  type StatusCode,
} from "./errors.js";

type ErrorClass = new (message: string, details: ErrorDetails) => RollserveError;

const CLASSES: Readonly<Partial<Record<StatusCode, ErrorClass>>> = {
  INVALID_ARGUMENT: InvalidArgumentError,
  NOT_FOUND: InvalidArgumentError,
  ALREADY_EXISTS: InvalidArgumentError,
  OUT_OF_RANGE: InvalidArgumentError,
  PERMISSION_DENIED: InvalidArgumentError,
  UNAUTHENTICATED: InvalidArgumentError,
  UNIMPLEMENTED: InvalidArgumentError,
  FAILED_PRECONDITION: PreconditionError,
  ABORTED: PreconditionError,
  RESOURCE_EXHAUSTED: LimitError,
  UNAVAILABLE: UnavailableError,
  CANCELLED: CancelledError,
  DEADLINE_EXCEEDED: DeadlineError,
};
const ACCESS_REASONS: readonly string[] = ["TOKEN_MISSING", "TOKEN_INVALID", "TOKEN_EXPIRED", "SCOPE_MISSING"];

/** The beginning of gRPC's text where no connection could be made; other texts may come from a server. */
const NO_CONNECTION = "No connection established";
const TLS_FAILURES: readonly (readonly [RegExp, string, string])[] = [
  [
    /self[- ]signed certificate|unable to (verify the first|get local issuer) certificate|certificate has expired|certificate is not yet valid/,
    "ca",
    "an authority that vouches for the server's certificate",
  ],
  [/does not match certificate's altnames/, "target", "a name or address in the server's certificate"],
  [/wrong version number|packet length too long/, "target", "a server that encrypts connections (TLS)"],
];
const CLOSED = /socket disconnected before secure TLS|ECONNRESET|socket hang up|alert|Failed to connect \(/i;

// Field numbers of google.rpc.Status, google.protobuf.Any, google.rpc.BadRequest and its FieldViolation.
const STATUS_DETAILS = 3;
const ANY_TYPE = 1;
const ANY_VALUE = 2;
const VIOLATIONS = 1;
const VIOLATION_FIELD = 1;
const BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest";

/** Whether an error is one of gRPC's, with a status. */
export function isRpcError(error: unknown): error is ServiceError {
  return error instanceof Error && "code" in error && "details" in error && "metadata" in error;
}

/**
 * Return the name of an error's status; UNAVAILABLE where a server has reset a call, as gRPC does with calls that a
 * server has received and not begun when it stops. Calls that the client cancels have no error of gRPC.
 */
export function codeOf(error: ServiceError): StatusCode {
  return isReset(error) ? "UNAVAILABLE" : (status[error.code] as StatusCode);
}

function isReset({ code, metadata }: ServiceError): boolean {
  return code === status.CANCELLED && trailing(metadata, "rollserve-reason") === "";
}

/** Return the reason of an error; empty for none. */
export function reasonOf(error: ServiceError): string {
  return tlsFailureOf(error) === undefined ? trailing(error.metadata, "rollserve-reason") : "TLS_FAILED";
}

/** Return the client's error for an error of gRPC; its class follows from the status and the reason. */
export function errorFromRpc(error: ServiceError): RollserveError {
  const failure = tlsFailureOf(error);
  if (failure !== undefined) {
    return new InvalidArgumentError(failure.message, {
      code: "UNAUTHENTICATED",
      reason: "TLS_FAILED",
      field: failure.field,
    });
  }
  const code = codeOf(error);
  const reason = reasonOf(error);
  const ErrorClass = ACCESS_REASONS.includes(reason) ? AccessError : (CLASSES[code] ?? ServerError);
  const details = error.details.replace(/\. Resolution note: ( \(|$)/, "$1"); // most often there is no such note
  const text = isReset(error) ? "the server reset the call" : details === "" ? code : details;
  const message = text + hintAboutTls(error);
  const requestId = trailing(error.metadata, "rollserve-request-id");
  return new ErrorClass(message, { code, reason, field: fieldOf(error.metadata), requestId });
}

/** Add to an error the environment variable with the proxy on the way, if no connection could be made through it. */
export function nameProxy(error: ServiceError, variable: string): void {
  if (error.code === status.UNAVAILABLE && error.details.startsWith(NO_CONNECTION)) {
    error.details += ` (through the proxy of ${variable})`;
  }
}

interface TlsFailure {
  readonly field: string;
  readonly message: string;
}

/** Return why TLS fails with every attempt to connect; undefined for errors of other kinds. */
function tlsFailureOf({ code, details }: ServiceError): TlsFailure | undefined {
  if (code !== status.UNAVAILABLE || !details.startsWith(NO_CONNECTION)) {
    return undefined;
  }
  for (const [pattern, field, expected] of TLS_FAILURES) {
    const found = pattern.exec(details);
    if (found !== null) {
      return { field, message: `${field}: ${mismatch(expected, `none: ${found[0]}`)}` };
    }
  }
  return undefined;
}

/** Return what may be missing where a server closes each new connection; empty for errors of other kinds. */
function hintAboutTls({ details }: ServiceError): string {
  if (!details.startsWith(NO_CONNECTION) || !CLOSED.test(details)) {
    return "";
  }
  return (
    ": the server closed the new connection. If it encrypts connections, give `ca`; if it asks for certificates, " +
    "give `cert` and `key`, signed by an authority that it trusts and not expired"
  );
}

/** Return the field that `google.rpc.BadRequest` in the status's details names, or an empty text. */
function fieldOf(metadata: Metadata): string {
  const [details] = metadata.get("grpc-status-details-bin");
  if (!(details instanceof Uint8Array)) {
    return "";
  }
  try {
    for (const detail of valuesOf(details, STATUS_DETAILS)) {
      const [type = new Uint8Array()] = valuesOf(detail, ANY_TYPE);
      const [value = new Uint8Array()] = valuesOf(detail, ANY_VALUE);
      const [violation = new Uint8Array()] = valuesOf(value, VIOLATIONS);
      if (textOf(type) === BAD_REQUEST) {
        return textOf(valuesOf(violation, VIOLATION_FIELD)[0] ?? new Uint8Array());
      }
    }
  } catch {
    // Details that some other server has made.
  }
  return "";
}

/** Return the values of a length-delimited field of a serialized message. */
function valuesOf(message: Uint8Array, number: number): Uint8Array[] {
  const values: Uint8Array[] = [];
  const reader = new BinaryReader(message);
  while (reader.pos < reader.len) {
    const [field, wireType] = reader.tag();
    if (field === number && wireType === WireType.LengthDelimited) {
      values.push(reader.bytes());
    } else {
      reader.skip(wireType, field);
    }
  }
  return values;
}

function textOf(bytes: Uint8Array): string {
  return new TextDecoder().decode(bytes);
}

function trailing(metadata: Metadata, key: string): string {
  return String(metadata.get(key)[0] ?? "");
}
