/** A server of gRPC that answers each call with a script. */

import { create, fromBinary, toBinary, type MessageInitShape } from "@bufbuild/protobuf";
import {
  Metadata,
  Server,
  ServerCredentials,
  type ServerDuplexStream,
  type ServerWritableStream,
  type ServiceDefinition,
  type status,
} from "@grpc/grpc-js";

import {
  DriveEnvironmentsRequestSchema,
  DriveEnvironmentsResponseSchema,
  ObtainSamplesResponseSchema,
  SamplerService,
  type DriveEnvironmentsRequest,
} from "#dist/generated/rollserve/v1/sampler_service_pb";
import type { DataType } from "#dist/generated/rollserve/v1/tensor_pb";

/** A serialized message to send, or how the call ends. */
export type Item = Uint8Array | { readonly code: status; readonly details: string; readonly reason?: string };

/** A call that arrived. */
export interface Arrived {
  readonly rpc: string;
  readonly request: Uint8Array;
  readonly metadata: Metadata;
}

/** A running server. */
export interface ScriptedServer extends AsyncDisposable {
  readonly address: string;
  /** The calls that arrived so far. */
  readonly calls: readonly Arrived[];
}

/** What a session is answered with for each of its requests, and for the end of its requests, which is undefined. */
export type SessionScript = (content: DriveEnvironmentsRequest["content"] | undefined) => readonly (Item | null)[];

const NO_SESSION: SessionScript = () => [];

/**
 * Serve on a port, or a free one, in clear or with credentials; `script` returns what each call is answered with, and
 * the call stays open after null. Sessions have a script of their own.
 */
export async function serve(
  script: (call: Arrived, index: number) => readonly (Item | null)[],
  { port: at = 0, credentials = ServerCredentials.createInsecure(), session = NO_SESSION } = {},
): Promise<ScriptedServer> {
  const calls: Arrived[] = [];
  const server = new Server();
  const same = (value: Buffer): Buffer => value;
  /** Send what a script says; return whether it has come to its end. */
  const send = (
    stream: Pick<ServerDuplexStream<Buffer, Buffer>, "write" | "emit">,
    items: readonly (Item | null)[],
  ): boolean => {
    for (const item of items) {
      if (item === null) {
        return false;
      }
      if (item instanceof Uint8Array) {
        stream.write(Buffer.from(item));
        continue;
      }
      const metadata = new Metadata();
      if (item.reason !== undefined) {
        metadata.set("rollserve-reason", item.reason);
        metadata.set("rollserve-request-id", "0123456789abcdef");
      }
      stream.emit("error", { code: item.code, details: item.details, metadata });
      return false;
    }
    return true;
  };
  const handle = (rpc: string) => (stream: ServerWritableStream<Buffer, Buffer>) => {
    const call = { rpc, request: stream.request, metadata: stream.metadata };
    calls.push(call);
    if (send(stream, script(call, calls.length - 1))) {
      stream.end();
    }
  };
  const drive = (stream: ServerDuplexStream<Buffer, Buffer>): void => {
    stream.on("data", (request: Buffer) => {
      calls.push({ rpc: "DriveEnvironments", request, metadata: stream.metadata });
      send(stream, session(fromBinary(DriveEnvironmentsRequestSchema, request).content));
    });
    stream.on("end", () => {
      if (send(stream, session(undefined))) {
        stream.end();
      }
    });
  };
  const rpcs = Object.values(SamplerService.method).map(({ name }) => name);
  const definition: ServiceDefinition = Object.fromEntries(
    rpcs.map((name) => [
      name,
      {
        path: `/${SamplerService.typeName}/${name}`,
        requestStream: name === "DriveEnvironments",
        responseStream: true,
        requestSerialize: same,
        requestDeserialize: same,
        responseSerialize: same,
        responseDeserialize: same,
      },
    ]),
  );
  const handlers = Object.fromEntries(rpcs.map((name) => [name, handle(name)]));
  server.addService(definition, { ...handlers, DriveEnvironments: drive });
  const port = await new Promise<number>((resolve, reject) => {
    server.bindAsync(`127.0.0.1:${String(at)}`, credentials, (error, bound) => {
      if (error === null) {
        resolve(bound);
      } else {
        reject(error);
      }
    });
  });
  return {
    address: `127.0.0.1:${String(port)}`,
    calls,
    [Symbol.asyncDispose]: () => {
      server.forceShutdown();
      return Promise.resolve();
    },
  };
}

/** The content of a response of a sampling call. */
export type Content = NonNullable<MessageInitShape<typeof ObtainSamplesResponseSchema>["content"]>;

/** Return a serialized response of a sampling call. */
export function response(content: Content): Uint8Array {
  return toBinary(ObtainSamplesResponseSchema, create(ObtainSamplesResponseSchema, { content }));
}

/** Return a serialized response of a session. */
export function driven(
  content: NonNullable<MessageInitShape<typeof DriveEnvironmentsResponseSchema>["content"]>,
): Uint8Array {
  return toBinary(DriveEnvironmentsResponseSchema, create(DriveEnvironmentsResponseSchema, { content }));
}

/** A named tensor as the wire has it. */
export interface NamedInit {
  readonly name: string;
  readonly tensor: { readonly dataType: DataType; readonly shape: bigint[]; readonly data: Uint8Array };
}

/** Return a named tensor as the wire has it. */
export function named(
  name: string,
  dataType: DataType,
  shape: readonly number[],
  elements: ArrayBufferView,
): NamedInit {
  const data = new Uint8Array(elements.buffer, elements.byteOffset, elements.byteLength);
  return { name, tensor: { dataType, shape: shape.map(BigInt), data } };
}
