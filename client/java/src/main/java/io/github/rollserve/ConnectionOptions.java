package io.github.rollserve;

import io.grpc.ChannelCredentials;
import io.grpc.ClientInterceptor;
import io.grpc.InsecureChannelCredentials;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Objects;
import java.util.function.Consumer;

/** Options of {@link Sampler#connect(String, ConnectionOptions)}. Each method returns options with one more set. */
@CheckReturnValue
public final class ConnectionOptions {
    private String sampler = "";
    private Duration timeout = Duration.ofSeconds(60);
    private int maxMessageBytes = 8 << 20;
    private List<Compression> compression = List.of();
    private boolean shared;
    private boolean tls;
    private Pem ca;
    private Pem cert;
    private Pem key;
    private ChannelCredentials credentials;
    private List<ClientInterceptor> interceptors = List.of();
    private String token;
    private Path tokenFile;
    private Consumer<String> warningListener = text ->
        System.getLogger("io.github.rollserve").log(System.Logger.Level.WARNING, text);

    /** Creates options that all have their defaults. */
    public ConnectionOptions() {}

    private ConnectionOptions(ConnectionOptions other) {
        sampler = other.sampler;
        timeout = other.timeout;
        maxMessageBytes = other.maxMessageBytes;
        compression = other.compression;
        shared = other.shared;
        tls = other.tls;
        ca = other.ca;
        cert = other.cert;
        key = other.key;
        credentials = other.credentials;
        interceptors = other.interceptors;
        token = other.token;
        tokenFile = other.tokenFile;
        warningListener = other.warningListener;
    }

    /**
     * Names the sampler.
     *
     * @param name the name; empty for the default one
     * @return the options
     */
    public ConnectionOptions withSampler(String name) {
        ConnectionOptions changed = new ConnectionOptions(this);
        changed.sampler = Objects.requireNonNull(name, "name");
        return changed;
    }

    /**
     * Sets how long an update may take, and how long a sampling call or an evaluation may go without any progress.
     * Updates of environments, and calls of their methods, may take 10 minutes more while the server can be reached. A
     * call that begins while the server is away or stopping waits for it, or for the next one, for this time, if the
     * server has answered before; otherwise it fails at once.
     *
     * @param time a positive time; 60 seconds by default
     * @return the options
     */
    public ConnectionOptions withTimeout(Duration time) {
        ConnectionOptions changed = new ConnectionOptions(this);
        changed.timeout = Timeouts.positive("timeout", time);
        return changed;
    }

    /**
     * Sets the size of the largest message to receive.
     *
     * @param bytes the size, from 4 KiB to 256 MiB; 8 MiB by default
     * @return the options
     */
    public ConnectionOptions withMaxMessageBytes(int bytes) {
        if (bytes < 4 << 10 || bytes > 256 << 20) {
            throw Errors.invalid("maxMessageBytes", "4 KiB to 256 MiB", bytes);
        }
        ConnectionOptions changed = new ConnectionOptions(this);
        changed.maxMessageBytes = bytes;
        return changed;
    }

    /**
     * Sets the codecs that columns of batches may come in.
     *
     * @param codecs the codecs, the preferred one first; none by default
     * @return the options
     * @throws InvalidArgumentException if the library of a codec is missing
     */
    public ConnectionOptions withCompression(Compression... codecs) {
        ConnectionOptions changed = new ConnectionOptions(this);
        changed.compression = Compression.available(codecs);
        return changed;
    }

    /**
     * Sets whether calls use agents and environments that other clients set. By default, calls fail with a
     * {@link PreconditionException} ({@link Reason#UNEXPECTED_VERSION}) once another client has replaced or changed
     * what this client set.
     *
     * @param isShared whether they do
     * @return the options
     */
    public ConnectionOptions withShared(boolean isShared) {
        ConnectionOptions changed = new ConnectionOptions(this);
        changed.shared = isShared;
        return changed;
    }

    /**
     * Sets a PEM file with certificates of authorities, to encrypt the connection if one of them signed the server's.
     *
     * @param file the file
     * @return the options
     */
    public ConnectionOptions withCa(Path file) {
        ConnectionOptions changed = new ConnectionOptions(this);
        changed.ca = Pem.of(file);
        return changed;
    }

    /**
     * Sets the certificates of authorities in the PEM format; see {@link #withCa(Path)}.
     *
     * @param content the content of such a file, as a secret store has it
     * @return the options
     */
    public ConnectionOptions withCa(byte[] content) {
        ConnectionOptions changed = new ConnectionOptions(this);
        changed.ca = Pem.of(content);
        return changed;
    }

    /**
     * Sets a PEM file with a certificate of the client, for servers that ask for one. Without {@link #withCa(Path)},
     * Java's own authorities count.
     *
     * @param file the file
     * @return the options
     */
    public ConnectionOptions withCert(Path file) {
        ConnectionOptions changed = new ConnectionOptions(this);
        changed.cert = Pem.of(file);
        return changed;
    }

    /**
     * Sets a certificate of the client in the PEM format; see {@link #withCert(Path)}.
     *
     * @param content the content of such a file, as a secret store has it
     * @return the options
     */
    public ConnectionOptions withCert(byte[] content) {
        ConnectionOptions changed = new ConnectionOptions(this);
        changed.cert = Pem.of(content);
        return changed;
    }

    /**
     * Sets a PEM file with the private key of {@link #withCert(Path)}, in the form PKCS #8.
     *
     * @param file the file
     * @return the options
     */
    public ConnectionOptions withKey(Path file) {
        ConnectionOptions changed = new ConnectionOptions(this);
        changed.key = Pem.of(file);
        return changed;
    }

    /**
     * Sets the private key of the certificate in the PEM format; see {@link #withKey(Path)}.
     *
     * @param content the content of such a file, as a secret store has it
     * @return the options
     */
    public ConnectionOptions withKey(byte[] content) {
        ConnectionOptions changed = new ConnectionOptions(this);
        changed.key = Pem.of(content);
        return changed;
    }

    /**
     * Encrypts the connection if one of Java's own authorities signed the server's certificate. {@code withCa} and
     * {@code withCert} encrypt it, too.
     *
     * @return the options
     */
    public ConnectionOptions withTls() {
        ConnectionOptions changed = new ConnectionOptions(this);
        changed.tls = true;
        return changed;
    }

    /**
     * Sets gRPC's own credentials, such as {@code TlsChannelCredentials} with trust managers, instead of those of
     * {@code withTls}, {@code withCa}, {@code withCert} and {@code withKey}.
     *
     * @param credentials the credentials
     * @return the options
     */
    public ConnectionOptions withCredentials(ChannelCredentials credentials) {
        ConnectionOptions changed = new ConnectionOptions(this);
        changed.credentials = Objects.requireNonNull(credentials, "credentials");
        return changed;
    }

    /**
     * Sets interceptors of all RPCs, for tracing, metrics or metadata. They do not see the token.
     *
     * @param interceptors the interceptors, of which the first one is called first
     * @return the options
     */
    public ConnectionOptions withInterceptors(ClientInterceptor... interceptors) {
        ConnectionOptions changed = new ConnectionOptions(this);
        changed.interceptors = Arguments.list("interceptors", interceptors);
        return changed;
    }

    /**
     * Sets a bearer token, for servers that ask who their clients are. Connections that leave this machine have to be
     * encrypted.
     *
     * @param text the token
     * @return the options
     */
    public ConnectionOptions withToken(String text) {
        ConnectionOptions changed = new ConnectionOptions(this);
        changed.token = Objects.requireNonNull(text, "text");
        return changed;
    }

    /**
     * Sets a file with a bearer token, which is read for each call, instead of the token.
     *
     * @param file the file
     * @return the options
     */
    public ConnectionOptions withTokenFile(Path file) {
        ConnectionOptions changed = new ConnectionOptions(this);
        changed.tokenFile = Objects.requireNonNull(file, "file");
        return changed;
    }

    /**
     * Sets what is called with each warning of the server about a call that runs, such as that no episode ends, in the
     * thread that makes the call or reads its stream. By default, the {@link System.Logger} named
     * {@code io.github.rollserve} logs it.
     *
     * @param listener takes the warning's text
     * @return the options
     */
    public ConnectionOptions withWarningListener(Consumer<String> listener) {
        ConnectionOptions changed = new ConnectionOptions(this);
        changed.warningListener = Objects.requireNonNull(listener, "listener");
        return changed;
    }

    String sampler() {
        return sampler;
    }

    Duration timeout() {
        return timeout;
    }

    int maxMessageBytes() {
        return maxMessageBytes;
    }

    List<Compression> compression() {
        return compression;
    }

    boolean shared() {
        return shared;
    }

    Consumer<String> warningListener() {
        return warningListener;
    }

    boolean isEncrypted() {
        return credentials == null
            ? namesTls()
            : !(credentials.withoutBearerTokens() instanceof InsecureChannelCredentials);
    }

    boolean namesTls() {
        return tls || ca != null || cert != null || key != null;
    }

    ChannelCredentials credentials() {
        return credentials;
    }

    List<ClientInterceptor> interceptors() {
        return interceptors;
    }

    Pem ca() {
        return ca;
    }

    Pem cert() {
        return cert;
    }

    Pem key() {
        return key;
    }

    String token() {
        return token;
    }

    Path tokenFile() {
        return tokenFile;
    }
}
