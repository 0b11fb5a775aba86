package rollserve_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	rollserve "github.com/rollserve/rollserve/client/go"
	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

func TestTLSConnectsToKnownServersOnly(t *testing.T) {
	address, ca := encryptedServer(t, &script{calls: []scripted{oneStep(), oneStep()}})
	_, otherCA := encryptedServer(t, &script{})
	call := func(target, ca string) error {
		sampler, err := rollserve.Connect(target, rollserve.Config{CA: ca})
		fatal(t, err)
		defer sampler.Close()
		_, err = sampler.ObtainSamples(context.Background(), 1, nil)
		return err
	}
	fatal(t, call(address, ca))
	fatal(t, callWithSettings(t, address, ca))
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(t, err)
	server := grpc.NewServer()
	go func() { _ = server.Serve(plain) }()
	defer server.Stop()
	for _, wrong := range []struct{ target, ca, field string }{
		{address, otherCA, "CA"},
		{strings.Replace(address, "127.0.0.1", "localhost", 1), ca, "target"},
		{plain.Addr().String(), ca, "target"},
	} {
		err := call(wrong.target, wrong.ca)
		isInvalid(t, err, wrong.field)
		same(t, "reason", rollserve.ReasonOf(err), rollserve.ReasonTLSFailed)
	}
}

// callWithSettings calls with a *tls.Config, and a token, which needs an encrypted connection.
func callWithSettings(t *testing.T, target, ca string) error {
	t.Helper()
	content, err := os.ReadFile(ca)
	fatal(t, err)
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(content)
	config := rollserve.Config{TLS: &tls.Config{RootCAs: authorities}, Token: "secret"}
	if _, err := rollserve.Connect("server.lab:50051", config); err != nil {
		return err
	}
	config.CA = ca
	_, err = rollserve.Connect(target, config)
	isInvalid(t, err, "TLS")
	config.CA = ""
	sampler, err := rollserve.Connect(target, config)
	fatal(t, err)
	defer sampler.Close()
	_, err = sampler.ObtainSamples(context.Background(), 1, nil)
	return err
}

// TestTLSWithTheSystemsAuthoritiesConnectsToKnownServersOnly calls in a process of its own, whose authorities are those
// of SSL_CERT_FILE.
func TestTLSWithTheSystemsAuthoritiesConnectsToKnownServersOnly(t *testing.T) {
	if target := os.Getenv("ROLLSERVE_TEST_TARGET"); target != "" {
		sampler, err := rollserve.Connect(target, rollserve.Config{TLS: &tls.Config{}})
		fatal(t, err)
		defer sampler.Close()
		_, err = sampler.ObtainSamples(context.Background(), 1, nil)
		fatal(t, err)
		return
	}
	address, ca := encryptedServer(t, &script{calls: []scripted{oneStep()}})
	_, otherCA := encryptedServer(t, &script{})
	for file, isKnown := range map[string]bool{ca: true, otherCA: false} {
		command := exec.Command(os.Args[0], "-test.run", "TestTLSWithTheSystemsAuthorities")
		command.Env = append(os.Environ(), "SSL_CERT_FILE="+file, "SSL_CERT_DIR=/none", "ROLLSERVE_TEST_TARGET="+address)
		output, err := command.CombinedOutput()
		if (err == nil) != isKnown || !isKnown && !strings.Contains(string(output), "CA: expected an authority") {
			t.Errorf("known: %v, got %v: %s", isKnown, err, output)
		}
	}
}

// encryptedServer returns the address of a server, and the file with its own certificate, which is for 127.0.0.1 only.
func encryptedServer(t *testing.T, service *script) (address, ca string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatal(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	fatal(t, err)
	ca = filepath.Join(t.TempDir(), "ca.pem")
	encoded := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
	fatal(t, os.WriteFile(ca, encoded, 0o600))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(t, err)
	pair := tls.Certificate{Certificate: [][]byte{certificate}, PrivateKey: key}
	server := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&pair)))
	pb.RegisterSamplerServiceServer(server, service)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return listener.Addr().String(), ca
}
