package io.github.rollserve;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ChannelCredentials;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ClientInterceptors;
import io.grpc.Deadline;
import io.grpc.ForwardingClientCall;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.GrpcSslContexts;
import io.grpc.netty.NettySslContextChannelCredentials;
import io.grpc.stub.ClientCalls;
import io.netty.handler.ssl.SslContextBuilder;
import java.io.IOException;
import java.io.InputStream;
import java.time.Duration;
import java.util.Objects;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** A connection to a server, with the metadata of its calls and the versions that its client has set. */
final class Connection {
    /** The limit of gRPC, which messages that are not streamed may have. */
    private static final int MIN_MESSAGE_BYTES = 4 << 20;

    private final ConnectionOptions options;
    private final ManagedChannel managed;
    private final Channel channel;
    private final Contact contact;
    private final OwnVersions own;

    private Connection(String target, ConnectionOptions options, ManagedChannel managed, Channel channel) {
        this.contact = new Contact(target);
        this.options = options;
        this.managed = managed;
        this.channel = channel;
        this.own = new OwnVersions(options.shared());
    }

    /** Returns a connection, which connects by itself when it is first used. */
    static Connection to(String target, ConnectionOptions options) {
        if (Objects.requireNonNull(target, "target").isBlank()) {
            throw Errors.invalid("target", "HOST:PORT, such as 127.0.0.1:50051", "nothing");
        }
        Token token = Token.of(target, options);
        ChannelCredentials credentials = credentials(options);
        try {
            ManagedChannelBuilder<?> builder = Grpc.newChannelBuilder(target, credentials);
            if (Token.isLocal(target)) {
                builder.proxyDetector(address -> null); // a proxy has another loopback address
            }
            ManagedChannel managed = builder
                .maxInboundMessageSize(Math.max(options.maxMessageBytes(), MIN_MESSAGE_BYTES))
                .keepAliveTime(20, TimeUnit.SECONDS)
                .keepAliveTimeout(10, TimeUnit.SECONDS)
                .build();
            Channel own = ClientInterceptors.intercept(managed, interceptor(managed, token, options.sampler()));
            Channel channel = ClientInterceptors.interceptForward(own, options.interceptors());
            return new Connection(target, options, managed, channel);
        } catch (IllegalArgumentException refused) {
            throw Errors.invalid("target", "HOST:PORT, such as 127.0.0.1:50051", refused.getMessage());
        }
    }

    private static ChannelCredentials credentials(ConnectionOptions options) {
        if (options.credentials() != null && options.namesTls()) {
            throw Errors.invalid("credentials", "either credentials, or tls, ca, cert and key", "both");
        }
        if (options.credentials() != null) {
            return options.credentials();
        }
        if (!options.namesTls()) {
            return InsecureChannelCredentials.create();
        }
        if ((options.cert() == null) != (options.key() == null)) {
            throw Errors.invalid("key", "both cert and key, or neither", "one of them");
        }
        // Servers of Rollserve accept TLS 1.3 only, which older versions of Netty leave out unless it is named.
        SslContextBuilder tls = GrpcSslContexts.forClient().protocols("TLSv1.3", "TLSv1.2");
        String field = "ca";
        try {
            if (options.ca() != null) {
                try (InputStream ca = options.ca().open()) {
                    tls.trustManager(ca);
                }
            }
            field = "cert";
            if (options.cert() != null) {
                try (InputStream cert = options.cert().open(); InputStream key = options.key().open()) {
                    tls.keyManager(cert, key);
                }
            }
            return NettySslContextChannelCredentials.create(tls.build());
        } catch (IllegalArgumentException | IOException refused) { // an SSLException is an IOException
            throw Errors.invalid(field, "certificates or a key in the PEM format", refused);
        }
    }

    /** Returns an interceptor that adds the metadata which all calls have, and connects at once if they have to. */
    private static ClientInterceptor interceptor(ManagedChannel managed, Token token, String sampler) {
        Metadata.Key<String> authorization = Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);
        Metadata.Key<String> samplerKey = Metadata.Key.of("rollserve-sampler", Metadata.ASCII_STRING_MARSHALLER);
        return new ClientInterceptor() {
            @Override
            public <Q, R> ClientCall<Q, R> interceptCall(
                MethodDescriptor<Q, R> method, CallOptions callOptions, Channel next) {
                return new ForwardingClientCall.SimpleForwardingClientCall<>(next.newCall(method, callOptions)) {
                    @Override
                    public void start(Listener<R> listener, Metadata headers) {
                        token.read().ifPresent(text -> headers.put(authorization, "Bearer " + text));
                        if (!sampler.isEmpty()) {
                            headers.put(samplerKey, sampler);
                        }
                        managed.resetConnectBackoff(); // gRPC's own pauses grow to two minutes
                        super.start(listener, headers);
                    }
                };
            }
        };
    }

    ConnectionOptions options() {
        return options;
    }

    Channel channel() {
        return channel;
    }

    Contact contact() {
        return contact;
    }

    OwnVersions own() {
        return own;
    }

    void close() {
        managed.shutdownNow();
    }

    boolean isClosed() {
        return managed.isShutdown();
    }

    /**
     * Makes a call with a single answer. If a server that has answered before is away, or is lost before its answer,
     * the call is made again, within its time. An update may then be made twice, with the same result and a version
     * more.
     *
     * @param timeout the time that attempts go on after an interruption
     * @param time the time of the call, at least the timeout
     */
    <Q, R> R answer(MethodDescriptor<Q, R> method, Q request, Duration timeout, Duration time) {
        Deadline deadline = Deadline.after(time.toNanos(), TimeUnit.NANOSECONDS);
        Interruptions interruptions = new Interruptions(this, timeout, new CountDownLatch(1));
        while (true) {
            try {
                CallOptions callOptions = CallOptions.DEFAULT.withDeadline(deadline);
                R response = ClientCalls.blockingUnaryCall(channel, method, callOptions, request);
                contact.record();
                return response;
            } catch (StatusRuntimeException error) {
                pause(interruptions, error, time);
            }
        }
    }

    private static void pause(Interruptions interruptions, StatusRuntimeException error, Duration time) {
        try {
            interruptions.pause(error, false, false);
        } catch (DeadlineException passed) {
            if (passed.reason() != Reason.NONE) {
                throw passed; // a server at work says so
            }
            if (interruptions.last() != null) {
                throw interruptions.last(); // the last attempt had only the rest of the time
            }
            String message = "timeout: no answer for " + time.toMillis() / 1000.0 + " s";
            throw new DeadlineException(new Details(message, passed.code(), "", "timeout", "", passed.getCause()));
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw Errors.cancelled("the thread was interrupted", interrupted);
        }
    }
}
