package io.github.rollserve;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.grpc.ChannelCredentials;
import io.grpc.ServerCredentials;
import io.grpc.TlsChannelCredentials;
import io.grpc.TlsServerCredentials;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.util.Base64;
import java.util.logging.Level;
import java.util.logging.Logger;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

@Timeout(60)
class TlsTest {
    private static final String PASSWORD = "password";
    private static final Logger LOGGER = Logger.getLogger("io.grpc");

    @TempDir
    private Path folder;

    @BeforeAll
    static void hideFailedHandshakes() {
        LOGGER.setLevel(Level.WARNING);
    }

    @Test
    void connectionsAreMadeToKnownServersOnly() throws Exception {
        ServerCredentials credentials = credentials("server");
        credentials("other");
        Path ca = folder.resolve("server.pem");
        assertEquals("ca", assertThrows(
            InvalidArgumentException.class, () -> call("127.0.0.1:1", folder.resolve("missing.pem"))).field());
        try (ScriptedServer server = new ScriptedServer(
                credentials, ScriptedServer.oneStep(), ScriptedServer.oneStep(), ScriptedServer.oneStep());
            ScriptedServer plain = new ScriptedServer()) {
            assertArrayEquals(new int[] {1}, call(server.target(), ca).lengths());
            ConnectionOptions content = new ConnectionOptions().withCa(Files.readAllBytes(ca));
            assertArrayEquals(new int[] {1}, call(server.target(), content).lengths());
            ChannelCredentials own = TlsChannelCredentials.newBuilder().trustManager(ca.toFile()).build();
            ConnectionOptions credentialed = new ConnectionOptions().withCredentials(own).withToken("secret");
            assertArrayEquals(new int[] {1}, call(server.target(), credentialed).lengths());
            assertEquals("credentials", assertThrows(
                InvalidArgumentException.class, () -> call(server.target(), credentialed.withCa(ca))).field());
            assertFails("ca", server.target(), folder.resolve("other.pem"));
            assertFails("target", server.target().replace("127.0.0.1", "localhost"), ca);
            assertFails("target", plain.target(), ca);
        }
    }

    private static EpisodeBatch call(String target, Path ca) {
        return call(target, new ConnectionOptions().withCa(ca));
    }

    private static EpisodeBatch call(String target, ConnectionOptions options) {
        try (Sampler sampler = Sampler.connect(target, options)) {
            return sampler.obtainSamples(1);
        }
    }

    private static void assertFails(String field, String target, Path ca) {
        InvalidArgumentException error = assertThrows(InvalidArgumentException.class, () -> call(target, ca));
        assertEquals(Reason.TLS_FAILED, error.reason());
        assertEquals(field, error.field(), error.getMessage());
    }

    /** Makes the credentials of a server with a certificate of its own for 127.0.0.1, which NAME.pem has. */
    private ServerCredentials credentials(String name)
        throws IOException, InterruptedException, GeneralSecurityException {
        Path store = folder.resolve(name + ".p12");
        Process keytool = new ProcessBuilder(
            Path.of(System.getProperty("java.home"), "bin", "keytool").toString(), "-genkeypair", "-alias", name,
            "-keyalg", "EC", "-dname", "CN=" + name, "-ext", "SAN=IP:127.0.0.1", "-ext", "BC=ca:true",
            "-keystore", store.toString(), "-storepass", PASSWORD).inheritIO().start();
        assertEquals(0, keytool.waitFor());
        KeyStore keys = KeyStore.getInstance("PKCS12");
        try (InputStream stream = Files.newInputStream(store)) {
            keys.load(stream, PASSWORD.toCharArray());
        }
        Path certificate = pem(name + ".pem", "CERTIFICATE", keys.getCertificate(name).getEncoded());
        Path key = pem(name + ".key", "PRIVATE KEY", keys.getKey(name, PASSWORD.toCharArray()).getEncoded());
        return TlsServerCredentials.create(certificate.toFile(), key.toFile());
    }

    private Path pem(String file, String kind, byte[] content) throws IOException {
        String text = Base64.getMimeEncoder().encodeToString(content);
        return Files.writeString(
            folder.resolve(file), "-----BEGIN %1$s-----\n%2$s\n-----END %1$s-----\n".formatted(kind, text));
    }
}
