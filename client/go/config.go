package rollserve

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
)

const (
	defaultTimeout      = 60 * time.Second
	defaultMessageBytes = 8 << 20
	minMessageBytes     = 4 << 20 // gRPC's own limit, which messages that are not streamed may have
)

// Config says how to connect. The zero value of each field is its default.
type Config struct {
	// Sampler is the name of the sampler; empty for the default one.
	Sampler string
	// Timeout is how long a sampling call or an evaluation may go without any progress, and how long other calls may
	// take if their context has no deadline; 60 s by default. UpdateEnv, UpdateEnvPerWorker and CallEnvironments, for
	// which servers make environments, may take 10 minutes more while the server can be reached. A call that begins
	// while the server is away or stopping waits for it, or for the next one, for this time, if the server has answered
	// before; otherwise it fails at once.
	Timeout time.Duration
	// MaxMessageBytes is the size of the largest message to receive; 8 MiB by default.
	MaxMessageBytes int
	// Compression has the codecs that columns of batches may come in, the preferred one first; none by default.
	Compression []Compression
	// Shared says whether calls use agents and environments that other clients set. By default, calls fail with
	// ErrPrecondition (ReasonUnexpectedVersion) once another client has replaced or changed what this client set.
	Shared bool
	// TLS encrypts the connection with these settings, instead of CA, Cert and Key: with &tls.Config{}, one of the
	// system's authorities has to have signed the server's certificate.
	TLS *tls.Config
	// CA is a PEM file with certificates of authorities, to encrypt the connection if one of them signed the server's.
	CA string
	// Cert is a PEM file with a certificate of the client, for servers that ask for one. Without CA, the system's
	// authorities count.
	Cert string
	// Key is a PEM file with its private key.
	Key string
	// Token is a bearer token, for servers that ask who their clients are. Connections that leave this machine have to
	// be encrypted.
	Token string
	// TokenFile is a file with the token instead, which is read for each call.
	TokenFile string
	// Warn is called with what the server tells about a call while it runs, such as that no episode ends, in the
	// goroutine that makes the call. By default, slog's default logger gets it; before Go 1.21, package log.
	Warn func(warning string)
	// DialOptions are further options of gRPC, such as interceptors or a handler of statistics: those of
	// grpc.WithChainUnaryInterceptor, grpc.WithChainStreamInterceptor and grpc.WithStatsHandler see each attempt at each
	// RPC, with its metadata and gRPC's own error.
	DialOptions []grpc.DialOption
}

// withDefaults checks the fields and returns them with their defaults.
func (c Config) withDefaults(target string) (*Config, error) {
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.MaxMessageBytes == 0 {
		c.MaxMessageBytes = defaultMessageBytes
	}
	if c.Warn == nil {
		c.Warn = defaultWarn
	}
	switch {
	case target == "":
		return nil, invalid("target", "HOST:PORT, such as 127.0.0.1:50051", "nothing")
	case c.Timeout < 0:
		return nil, invalid("Timeout", "a positive time", c.Timeout)
	case c.MaxMessageBytes < 0 || c.MaxMessageBytes > 1<<30:
		return nil, invalid("MaxMessageBytes", "at most 1 GiB", c.MaxMessageBytes)
	case c.TLS != nil && c.CA+c.Cert+c.Key != "":
		return nil, invalid("TLS", "either TLS or files (CA, Cert, Key)", "both")
	case c.Token != "" && c.TokenFile != "":
		return nil, invalid("Token", "either Token or TokenFile", "both")
	case c.hasToken() && !c.isEncrypted() && !isLocal(target):
		expected := "an encrypted connection, because others in the network could read the token (give TLS or CA)"
		return nil, invalid("Token", expected, "none to "+target)
	}
	if _, err := compressionMessages(c.Compression); err != nil {
		return nil, err
	}
	if c.hasToken() {
		if _, err := c.token(); err != nil {
			return nil, err
		}
	}
	return &c, nil
}

func (c *Config) hasToken() bool { return c.Token != "" || c.TokenFile != "" }

func (c *Config) isEncrypted() bool { return c.TLS != nil || c.CA+c.Cert+c.Key != "" }

// token returns the token for a call. Errors do not show it.
func (c *Config) token() (string, error) {
	field, text := "Token", c.Token
	if c.TokenFile != "" {
		content, err := os.ReadFile(c.TokenFile)
		if err != nil {
			return "", invalid("TokenFile", "a file with a token", err)
		}
		field, text = "TokenFile", strings.TrimSpace(string(content))
	}
	isPrintable := func(r rune) bool { return r > ' ' && r <= '~' }
	if text == "" || strings.TrimFunc(text, isPrintable) != "" {
		return "", invalid(field, "a token: printable characters of ASCII without blanks", "another text")
	}
	return text, nil
}

// isLocal reports whether a target is on this machine, so that nobody in the network reads what is sent there.
func isLocal(target string) bool {
	if strings.HasPrefix(target, "unix:") || strings.HasPrefix(target, "unix-abstract:") {
		return true
	}
	host, _, err := net.SplitHostPort(addressOf(target))
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || (ip != nil && ip.IsLoopback())
}

// addressOf returns a target without its scheme.
func addressOf(target string) string {
	return strings.TrimPrefix(strings.TrimPrefix(target, "dns:///"), "passthrough:///")
}

// proxyVariable returns the environment variable with the proxy that gRPC takes on the way to a target; empty for none.
// Like net/http, whose rules gRPC has, it takes none to this machine.
func proxyVariable(target string) string {
	request := &http.Request{URL: &url.URL{Scheme: "https", Host: addressOf(target)}}
	if proxy, err := http.ProxyFromEnvironment(request); err != nil || proxy == nil || isLocal(target) {
		return ""
	}
	if os.Getenv("HTTPS_PROXY") != "" {
		return "HTTPS_PROXY"
	}
	return "https_proxy"
}

// dial returns a connection, which connects by itself, and the handshakes of its TLS.
//
// grpc.Dial and grpc.WithInsecure are deprecated and supported throughout gRPC 1.x; what replaces them needs newer
// versions than this package does.
func (c *Config) dial(target string) (*grpc.ClientConn, *handshakes, error) {
	seen := &handshakes{}
	options := []grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(max(c.MaxMessageBytes, minMessageBytes))),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
		// A server that is back should be noticed soon; gRPC's own pauses grow to two minutes.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond,
			},
			MinConnectTimeout: 20 * time.Second,
		}),
		grpc.WithChainUnaryInterceptor(c.interceptUnary),
		grpc.WithChainStreamInterceptor(c.interceptStream),
	}
	if c.isEncrypted() {
		settings, err := c.tls()
		if err != nil {
			return nil, nil, err
		}
		encrypted := watchedTLS{credentials.NewTLS(settings), seen}
		options = append(options, grpc.WithTransportCredentials(encrypted))
	} else {
		options = append(options, grpc.WithInsecure()) //nolint:staticcheck // see above
	}
	conn, err := grpc.Dial(target, append(options, c.DialOptions...)...) //nolint:staticcheck // see above
	if err != nil {
		return nil, nil, invalid("target", "HOST:PORT, such as 127.0.0.1:50051", err)
	}
	return conn, seen, nil
}

func (c *Config) tls() (*tls.Config, error) {
	if c.TLS != nil {
		return c.TLS.Clone(), nil
	}
	settings := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CA != "" {
		content, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, invalid("CA", "a PEM file", err)
		}
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(content) {
			return nil, invalid("CA", "a PEM file with certificates", c.CA)
		}
	}
	if (c.Cert == "") != (c.Key == "") {
		return nil, invalid("Key", "both Cert and Key, or neither", "one of them")
	}
	if c.Cert != "" {
		pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, invalid("Cert", "PEM files with a certificate and its key", err)
		}
		settings.Certificates = []tls.Certificate{pair}
	}
	return settings, nil
}

// outgoing returns the context of a call with the metadata that all calls have.
func (c *Config) outgoing(ctx context.Context) (context.Context, error) {
	if c.hasToken() {
		token, err := c.token()
		if err != nil {
			return nil, err
		}
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	if c.Sampler != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "rollserve-sampler", c.Sampler)
	}
	return ctx, nil
}

func (c *Config) interceptUnary(
	ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoker grpc.UnaryInvoker,
	options ...grpc.CallOption,
) error {
	ctx, err := c.outgoing(ctx)
	if err != nil {
		return err
	}
	var trailer metadata.MD
	options = append(options[:len(options):len(options)], grpc.Trailer(&trailer))
	err = invoker(ctx, method, request, reply, conn, options...)
	return withTrailer(err, trailer)
}

func (c *Config) interceptStream(
	ctx context.Context, description *grpc.StreamDesc, conn *grpc.ClientConn, method string, streamer grpc.Streamer,
	options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	ctx, err := c.outgoing(ctx)
	if err != nil {
		return nil, err
	}
	stream, err := streamer(ctx, description, conn, method, options...)
	return trailedStream{stream}, err
}

// trailedStream is a stream whose errors have its trailing metadata.
type trailedStream struct{ grpc.ClientStream }

func (s trailedStream) RecvMsg(message any) error {
	err := s.ClientStream.RecvMsg(message)
	if err == nil {
		return nil // the stream has no trailing metadata yet
	}
	return withTrailer(err, s.Trailer())
}

// handshakes has the outcome of the last TLS handshake of a connection. gRPC reports a failed one as a text alone.
type handshakes struct {
	mutex sync.Mutex
	last  error
}

// failure returns the client's error if the last handshake failed in a way that every other one will, too.
func (h *handshakes) failure() error {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	var (
		unknownAuthority x509.UnknownAuthorityError
		otherName        x509.HostnameError
		invalidNow       x509.CertificateInvalidError
		plain            tls.RecordHeaderError
	)
	field, expected := "", ""
	switch {
	case errors.As(h.last, &unknownAuthority), errors.As(h.last, &invalidNow):
		field, expected = "CA", "an authority that vouches for the server's certificate"
	case errors.As(h.last, &otherName):
		field, expected = "target", "a name or address in the server's certificate"
	case errors.As(h.last, &plain):
		field, expected = "target", "a server that encrypts connections (TLS)"
	default:
		return nil
	}
	message := mismatch(field, expected, h.last).Error()
	return &Error{
		Message: message, Code: codes.Unauthenticated, Reason: ReasonTLSFailed, Field: field, Cause: h.last,
	}
}

// watchedTLS are credentials that record the outcome of their handshakes.
type watchedTLS struct {
	credentials.TransportCredentials
	seen *handshakes
}

func (w watchedTLS) ClientHandshake(
	ctx context.Context, authority string, conn net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	encrypted, info, err := w.TransportCredentials.ClientHandshake(ctx, authority, conn)
	w.seen.mutex.Lock()
	w.seen.last = err
	w.seen.mutex.Unlock()
	return encrypted, info, err
}

func (w watchedTLS) Clone() credentials.TransportCredentials {
	return watchedTLS{w.TransportCredentials.Clone(), w.seen}
}

func max(a, b int) int {
	if a > b {
		return a
	}
	return b
}
