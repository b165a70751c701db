"""Servers that run applications, each with its own way to share a listener among threads and processes. Each job is written as those
of programs.py, of which they use the web files. Called by run.py, inside a `Bed`.
"""

import textwrap

from bed import digest, need
from programs import fetch_all, web_files

# Answers with what was posted, or with as many bytes as the path says.
WSGI = textwrap.dedent("""
    def application(environ, start_response):
        said = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if not said:
            n = int(environ["PATH_INFO"].strip("/") or 1)
            said = (b"%d;" % n * (n // 2 + 1))[:n]
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(said)))])
        return [said]
""")
SIZES = (1, 100, 5_000, 80_000, 1_000_000)


def posts_and_gets(bed, port):
    """Six threads, each with a connection that it keeps: pages of all sizes, and bodies that come back."""
    return bed.client("/usr/bin/python3", "-c", textwrap.dedent(f"""
        import hashlib, http.client, threading
        said = [None] * 6
        def work(n):
            c = http.client.HTTPConnection("127.0.0.1", {port}); h = hashlib.sha256()
            def ask(*what):
                for again in range(5): # a server ends a kept connection when it likes
                    try:
                        c.request(*what); return c.getresponse().read()
                    except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                        c.close()
            for i in range(60):
                body = b"%d-%d;" % (n, i) * (i * 50 + 1)
                assert ask("POST", "/", body) == body
                for size in {SIZES}:
                    got = ask("GET", f"/{{size}}"); assert len(got) == size; h.update(got)
            said[n] = h.hexdigest()
        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        [t.start() for t in threads]; [t.join() for t in threads]
        assert all(said); print(said)
    """))


def gunicorn(bed):
    """Workers that were forked before, with threads."""
    need("gunicorn")
    (bed.work / "app.py").write_text(WSGI)
    bed.server("gunicorn", "-w", 3, "-k", "gthread", "--threads", 3, "-b", "127.0.0.1:7080", "--log-level", "error", "--max-requests", 400,
               "--worker-tmp-dir", bed.work, "app:application", port=7080)
    return posts_and_gets(bed, 7080)


def uwsgi(bed):
    """A process that takes the connections, and workers behind it."""
    need("uwsgi")
    (bed.work / "app.py").write_text(WSGI)
    bed.server("uwsgi", "--plugin", "http,python3", "--master", "--processes", 3, "--threads", 2, "--http", "127.0.0.1:7081", "--http-keepalive",
               "--socket", "127.0.0.1:7082", "--wsgi-file", bed.work / "app.py", "--disable-logging", "--die-on-term", "--buffer-size", 8192,
               port=7081)
    bed.wait_for(7082)
    return posts_and_gets(bed, 7081)


def php_fpm(bed):
    """nginx in front, which keeps its connections to the workers."""
    need("/usr/sbin/php-fpm8.2", "nginx")
    (bed.work / "fpm.conf").write_text(textwrap.dedent(f"""
        [global]
        error_log = /dev/stderr
        daemonize = no
        [www]
        user = nobody
        group = nogroup
        listen = 127.0.0.1:7083
        pm = static
        pm.max_children = 10
    """))
    (bed.work / "app.php").write_text(textwrap.dedent("""\
        <?php $said = file_get_contents("php://input");
        if ($said === "") { $n = (int)trim($_SERVER["REQUEST_URI"], "/"); $said = substr(str_repeat("$n;", intdiv($n, 2) + 1), 0, $n); }
        header("Content-Length: " . strlen($said)); echo $said;
    """))
    (bed.work / "n.conf").write_text(textwrap.dedent(f"""
        daemon off; worker_processes 2; pid {bed.work}/nginx.pid; user root;
        events {{ worker_connections 256; }}
        http {{
            access_log off; client_body_temp_path {bed.work}/body; fastcgi_temp_path {bed.work}/fcgi; client_max_body_size 10m;
            upstream php {{ server 127.0.0.1:7083; keepalive 2; }}
            server {{ listen 127.0.0.1:7084; location / {{ include /etc/nginx/fastcgi_params; fastcgi_keep_conn on;
                fastcgi_param SCRIPT_FILENAME {bed.work}/app.php; fastcgi_pass php; }} }}
        }}
    """))
    bed.server("/usr/sbin/php-fpm8.2", "-n", "-F", "-y", bed.work / "fpm.conf", port=7083)
    bed.server("nginx", "-p", bed.work, "-e", "error.log", "-c", bed.work / "n.conf", port=7084)
    return posts_and_gets(bed, 7084)


def puma(bed):
    """Processes and threads of Ruby, with a reactor that holds what is slow."""
    need("puma")
    (bed.work / "config.ru").write_text(textwrap.dedent("""
        run lambda { |env|
          said = env["rack.input"] ? env["rack.input"].read.to_s : ""
          n = env["PATH_INFO"].delete("/").to_i
          said = ("#{n};" * (n / 2 + 1))[0, n] if said.empty?
          [200, {"Content-Type" => "text/plain", "Content-Length" => said.bytesize.to_s}, [said]]
        }
    """))
    bed.server("puma", "-w", 2, "-t", "2:4", "-b", "tcp://127.0.0.1:7085", "-e", "production", "--no-config", "--quiet", port=7085)
    return posts_and_gets(bed, 7085)


def tomcat(bed):
    """Java's channels with and without a selector: Tomcat inside a program, both of its connectors."""
    jars = "/usr/share/java/tomcat10-embed-core.jar"
    need("java", "javac", jars)
    (bed.work / "Server.java").write_text(textwrap.dedent("""
        import jakarta.servlet.http.*;
        import org.apache.catalina.connector.Connector;
        import org.apache.catalina.startup.Tomcat;
        public class Server {
            static class App extends HttpServlet {
                protected void service(HttpServletRequest q, HttpServletResponse a) throws java.io.IOException {
                    byte[] said = q.getInputStream().readAllBytes();
                    if (said.length == 0) {
                        int n = Integer.parseInt(q.getRequestURI().replace("/", ""));
                        said = (n + ";").repeat(n / 2 + 1).substring(0, n).getBytes();
                    }
                    a.setContentLength(said.length);
                    a.getOutputStream().write(said);
                }
            }
            public static void main(String[] of) throws Exception {
                Tomcat t = new Tomcat();
                t.setBaseDir(of[0]);
                var context = t.addContext("", of[0]);
                Tomcat.addServlet(context, "app", new App());
                context.addServletMappingDecoded("/*", "app");
                for (int i = 0; i < 2; i++) {
                    Connector c = new Connector("org.apache.coyote.http11.Http11Nio" + (i == 0 ? "" : "2") + "Protocol");
                    c.setPort(7086 + i);
                    c.setProperty("address", "127.0.0.1");
                    t.getService().addConnector(c);
                }
                t.start();
                t.getServer().await();
            }
        }
    """))
    path = ":".join([str(bed.work), jars, "/usr/share/java/tomcat10-annotations-api.jar", "/usr/share/java/tomcat10-servlet-api.jar",
                     "/usr/share/java/tomcat10-juli.jar", "/usr/share/java/*"])
    bed.quiet("javac", "-cp", path, "-d", bed.work, bed.work / "Server.java")
    bed.server("java", "-Xmx128m", "-cp", path, "Server", bed.work, port=7086)
    bed.wait_for(7087)
    return posts_and_gets(bed, 7086) + posts_and_gets(bed, 7087)


def nghttpd(bed):
    """HTTP/2: many streams on one connection."""
    need("nghttpd", "h2load", "nghttp")
    names = web_files(bed)
    bed.server("nghttpd", "--no-tls", "-n", 2, "-a", "127.0.0.1", "-d", bed.work, 7088, port=7088)
    urls = [f"http://127.0.0.1:7088/{n}" for n in names]
    bodies = digest(b"".join(bed.client("nghttp", url) for url in urls * 2)) # one by one: of several at a time it prints parts as they come
    loads = [bed.client("h2load", "-n", n, "-c", 8, "-m", 10, url).decode() for n, url in zip((8000, 3000, 80), urls)]
    return bodies + " ".join(line for said in loads for line in said.splitlines() if line.startswith(("requests:", "status codes:")))


def h2o(bed):
    need("h2o", "curl", "wrk")
    names = web_files(bed)
    (bed.work / "h2o.conf").write_text(textwrap.dedent(f"""
        listen:
          host: 127.0.0.1
          port: 7089
        user: root
        num-threads: 2
        error-log: /dev/null
        hosts:
          default:
            paths:
              /:
                file.dir: {bed.work}
    """))
    bed.server("h2o", "-m", "worker", "-c", bed.work / "h2o.conf", port=7089)
    return fetch_all(bed, 7089, names)


def trafficserver(bed):
    """A proxy with many threads that keeps what it has fetched."""
    need("/usr/bin/traffic_server", "nginx", "curl", "wrk")
    from programs import nginx_conf
    names = web_files(bed)
    for folder in ("etc/trafficserver", "var/log", "var/run", "var/cache", "libexec"):
        (bed.work / "ts" / folder).mkdir(parents=True)
    base = bed.work / "ts"
    (base / "etc/trafficserver/records.config").write_text(textwrap.dedent(f"""
        CONFIG proxy.config.http.server_ports STRING 7090:ip-in=127.0.0.1
        CONFIG proxy.config.url_remap.remap_required INT 1
        CONFIG proxy.config.reverse_proxy.enabled INT 1
        CONFIG proxy.config.http.cache.required_headers INT 0
        CONFIG proxy.config.admin.user_id STRING nobody
        CONFIG proxy.config.exec_thread.autoconfig INT 0
        CONFIG proxy.config.exec_thread.limit INT 2
        CONFIG proxy.config.diags.output.error STRING E
        CONFIG proxy.config.local_state_dir STRING {base}/var/run
        CONFIG proxy.config.log.logfile_dir STRING {base}/var/log
    """))
    (base / "etc/trafficserver/remap.config").write_text("map / http://127.0.0.1:7005/\n")
    (base / "etc/trafficserver/storage.config").write_text("var/cache 64M\n")
    (base / "etc/trafficserver/ip_allow.yaml").write_text("ip_allow:\n  - apply: in\n    ip_addrs: 0/0\n    action: allow\n    methods: ALL\n")
    bed.quiet("chown", "-R", "nobody", base)
    bed.server("nginx", "-p", bed.work, "-e", "error.log", "-c", nginx_conf(bed, 7005), port=7005)
    bed.server("/usr/bin/traffic_server", env={"TS_ROOT": str(base), "PROXY_CONFIG_CONFIG_DIR": str(base / "etc/trafficserver")}, port=7090)
    return fetch_all(bed, 7090, names)


PROGRAMS = [gunicorn, uwsgi, php_fpm, puma, tomcat, nghttpd, h2o, trafficserver]
