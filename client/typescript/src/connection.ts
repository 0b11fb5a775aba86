/**
 * Connection to a server: its address, TLS, the token, and calls as bytes.
 *
 * @packageDocumentation
 */

import { readFileSync } from "node:fs";
import { createSecureContext } from "node:tls";

import {
  ChannelCredentials,
  Client,
  credentials,
  Metadata,
  type ChannelOptions,
  type Interceptor,
} from "@grpc/grpc-js";

import { CancelledError, InvalidArgumentError } from "./errors.js";
import { SamplerService } from "./generated/rollserve/v1/sampler_service_pb.js";
import { bytesOf, RawCall } from "./raw_call.js";
import { nameProxy } from "./rpc_errors.js";

/** The name of an RPC of the service, such as `ObtainSamples`. */
export type RpcName = Capitalize<Extract<keyof typeof SamplerService.method, string>>;

/** What a connection is encrypted with, each in PEM format: the path of a file, or its bytes. */
export interface TlsOptions {
  /** Authorities, one of which signed the server's certificate; Node's own list by default. */
  readonly ca?: string | Uint8Array | undefined;
  /** A certificate of the client, for servers that ask for one. */
  readonly cert?: string | Uint8Array | undefined;
  /** Its private key, without a password. */
  readonly key?: string | Uint8Array | undefined;
}

/** Arguments of a connection. */
export interface ConnectionOptions extends TlsOptions {
  /**
   * Whether to encrypt the connection although neither `ca` nor `cert` is given: one of the public authorities then has
   * to have signed the server's certificate. False by default.
   */
  readonly tls?: boolean | undefined;
  /**
   * A bearer token, for servers that ask who their clients are, or a function that returns it, which is called for each
   * call. Connections that leave this machine need TLS.
   */
  readonly token?: string | (() => string) | undefined;
  /** A file with the token instead, which is read for each call. */
  readonly tokenFile?: string | undefined;
  /**
   * Interceptors of grpc-js, such as those of OpenTelemetry, the outermost one first. Requests and responses are
   * serialized messages there, and all calls are streams of responses.
   */
  readonly interceptors?: readonly Interceptor[] | undefined;
}

const GRPC_MESSAGE_BYTES = 4 * 1024 * 1024; // gRPC's own limit for messages that clients receive
/** Bytes that the server may send ahead of the reader. Node's own window of 64 KiB halves the speed of streams. */
const WINDOW_BYTES = 8 * 1024 * 1024;
const KEEPALIVE_MILLISECONDS = 20_000; // silence after which the server is pinged, while calls run
const KEEPALIVE_TIMEOUT_MILLISECONDS = 10_000;
const FIRST_RECONNECT_MILLISECONDS = 100;
const MAX_RECONNECT_MILLISECONDS = 500; // a server that is back should be noticed soon
/** The environment variables with the proxy that gRPC takes, the first that is set. */
const PROXY_VARIABLES = ["grpc_proxy", "https_proxy", "http_proxy"];
const TOKEN = /^[!-~]+$/;
/** A host or an address of IPv6, and a port; or a name with one of gRPC's schemes. */
const TARGET = /^(([^\s,:/[\]]+|\[[^\s,/[\]]+\]):\d+|(dns|ipv4|ipv6|unix|xds):[^,]+)$/;

/** A connection to a server, which the first call opens. */
export class Connection {
  /** Whether the server has ever answered, which decides what calls do while it is away. */
  wasMade = false;

  readonly #client: Client;
  readonly #readToken: (() => string) | undefined;
  readonly #sampler: string;
  readonly #proxyVariable: string | undefined;
  readonly #calls = new Set<RawCall>();
  #isClosed = false;

  /**
   * Make a connection.
   *
   * @throws InvalidArgumentError - An argument with an invalid value, or a file that cannot be used.
   */
  constructor(target: string, sampler: string, maxMessageBytes: number | undefined, options: ConnectionOptions) {
    if (!TARGET.test(target)) {
      throw InvalidArgumentError.of("target", "HOST:PORT of one server, such as 127.0.0.1:50051", `'${target}'`);
    }
    const channelCredentials = credentialsOf(options);
    this.#readToken = tokenReader(options);
    const isEncrypted = channelCredentials._isSecure();
    if (this.#readToken !== undefined && !isEncrypted && !isLocal(target)) {
      const expected = "an encrypted connection, because others in the network could read the token";
      throw InvalidArgumentError.of("token", expected, `none to '${target}'`, "give tls or ca");
    }
    const channelOptions: ChannelOptions = {
      "grpc.max_receive_message_length": Math.max(maxMessageBytes ?? 0, GRPC_MESSAGE_BYTES),
      "grpc-node.flow_control_window": WINDOW_BYTES,
      "grpc.keepalive_time_ms": KEEPALIVE_MILLISECONDS,
      "grpc.keepalive_timeout_ms": KEEPALIVE_TIMEOUT_MILLISECONDS,
      "grpc.initial_reconnect_backoff_ms": FIRST_RECONNECT_MILLISECONDS,
      "grpc.max_reconnect_backoff_ms": MAX_RECONNECT_MILLISECONDS,
      // Another connection to a server that was away would otherwise share the pause before the next attempt.
      "grpc.use_local_subchannel_pool": 1,
    };
    if (isLocal(target)) {
      channelOptions["grpc.enable_http_proxy"] = 0; // a proxy has another loopback address
    }
    this.#sampler = sampler;
    this.#client = new Client(target, channelCredentials, {
      ...channelOptions,
      interceptors: [...(options.interceptors ?? [])],
    });
    const isProxied = !this.#client.getChannel().getTarget().endsWith(addressOf(target));
    this.#proxyVariable = isProxied ? PROXY_VARIABLES.find((name) => process.env[name]) : undefined;
  }

  /**
   * Start a call.
   *
   * @param rpc - The name of the RPC.
   * @param request - The serialized request.
   * @param seconds - The time for the call; no limit by default.
   * @param staysOpen - Whether the client can send further requests.
   * @throws CancelledError - The connection is closed.
   */
  call(rpc: RpcName, request: Uint8Array, seconds?: number, staysOpen = false): RawCall {
    if (this.#isClosed) {
      throw closedError("sampler");
    }
    const metadata = new Metadata();
    if (this.#readToken !== undefined) {
      metadata.set("authorization", `Bearer ${this.#readToken()}`);
    }
    if (this.#sampler !== "") {
      metadata.set("rollserve-sampler", this.#sampler);
    }
    const path = `/${SamplerService.typeName}/${rpc}`;
    const same = (value: Buffer): Buffer => value;
    const options = seconds === undefined ? {} : { deadline: Date.now() + 1000 * seconds };
    const stream = staysOpen
      ? this.#client.makeBidiStreamRequest(path, same, same, metadata, options)
      : this.#client.makeServerStreamRequest(path, same, same, bytesOf(request), metadata, options);
    const call = new RawCall(stream, (error) => {
      if (this.#proxyVariable !== undefined) {
        nameProxy(error, this.#proxyVariable);
      }
    });
    if (staysOpen) {
      call.send(request);
    }
    this.#calls.add(call);
    call.onEnd = () => this.#calls.delete(call);
    return call;
  }

  /** Close the connection. Calls that are running, and later ones, end with a CancelledError. */
  close(): void {
    this.#isClosed = true;
    for (const call of this.#calls) {
      call.cancel(closedError("sampler"));
    }
    this.#client.close();
  }
}

/** Return the error for a call on something that the caller has closed. */
export function closedError(owner: "sampler" | "session" | "stream"): CancelledError {
  return new CancelledError(`the ${owner} was closed`, { code: "CANCELLED" });
}

function credentialsOf({ tls, ca, cert, key }: ConnectionOptions): ChannelCredentials {
  if (ca === undefined && cert === undefined && key === undefined && tls !== true) {
    return credentials.createInsecure();
  }
  if ((cert === undefined) !== (key === undefined)) {
    const missing = cert === undefined ? "cert" : "key";
    throw InvalidArgumentError.of(missing, "a value, because the other one of cert and key is given", undefined);
  }
  const files = { ca: read("ca", ca), cert: read("cert", cert), key: read("key", key) };
  try {
    createSecureContext({ ...(files.cert === null || files.key === null ? {} : { cert: files.cert, key: files.key }) });
  } catch (error) {
    const expected = `the private key of ${shown(cert)}, both in PEM format and without a password`;
    throw InvalidArgumentError.of("key", expected, shown(key), error instanceof Error ? error.message : "");
  }
  if (files.ca !== null && !files.ca.includes("-----BEGIN CERTIFICATE-----")) {
    throw InvalidArgumentError.of("ca", "certificates in PEM format", shown(ca));
  }
  return credentials.createSsl(files.ca, files.key, files.cert);
}

/** Return the content of a file, or bytes as they are. */
function read(field: string, source: string | Uint8Array | undefined): Buffer | null {
  if (source instanceof Uint8Array) {
    return Buffer.from(source);
  }
  if (source?.includes("-----BEGIN") === true) {
    throw InvalidArgumentError.of(
      field,
      "the path of a file, or bytes",
      "a text in PEM format",
      "give Buffer.from(text)",
    );
  }
  try {
    return source === undefined ? null : readFileSync(source);
  } catch (error) {
    throw InvalidArgumentError.of(field, "a readable file", source, error instanceof Error ? error.message : "");
  }
}

/** Return how errors name a source of PEM: keys are not shown. */
function shown(source: string | Uint8Array | undefined): string {
  return source instanceof Uint8Array ? `${String(source.byteLength)} bytes` : (source ?? "");
}

/** Return a function that returns the token for a call; undefined for no token. */
function tokenReader({ token, tokenFile }: ConnectionOptions): (() => string) | undefined {
  if (token !== undefined && tokenFile !== undefined) {
    throw InvalidArgumentError.of("token", "either token or tokenFile", "both");
  }
  if (token === undefined && tokenFile === undefined) {
    return undefined;
  }
  if (typeof token === "function") {
    return () => checkedToken("token", token());
  }
  const readToken = (): string =>
    token === undefined
      ? checkedToken("tokenFile", read("tokenFile", tokenFile)?.toString("latin1").trim() ?? "")
      : checkedToken("token", token);
  readToken();
  return readToken;
}

/** Return a token, whose characters gRPC can send; errors do not show it. */
function checkedToken(field: string, text: string): string {
  if (!TOKEN.test(text)) {
    const expected = "a token: printable characters of ASCII without blanks";
    throw InvalidArgumentError.of(field, expected, text === "" ? "nothing" : "another text");
  }
  return text;
}

/** Whether a connection to a target stays on this machine. */
function isLocal(target: string): boolean {
  if (target.startsWith("unix:")) {
    return true;
  }
  return /^(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?$/i.test(addressOf(target));
}

/** Return a target without its scheme. */
function addressOf(target: string): string {
  return target.replace(/^(ipv4|ipv6|dns):(\/\/[^/]*\/)?/, "");
}
