import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.data.IcebergGenerics;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.expressions.Expressions;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.apache.iceberg.types.Type;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/** Apache Iceberg's own REST catalog over HTTP, on loopback. Arguments: the file of its database, and its warehouse. */
public class RestCatalog {
    public static void main(String[] arguments) throws Exception {
        JdbcCatalog catalog = new JdbcCatalog();
        catalog.setConf(new Configuration());
        catalog.initialize("rest", Map.of("uri", "jdbc:sqlite:" + arguments[0], "warehouse", arguments[1], "jdbc.schema-version", "V1"));
        ServletContextHandler context = new ServletContextHandler();
        context.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
        context.addServlet(new ServletHolder(new Rows(catalog)), "/read/*");
        Server server = new Server(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
        server.setHandler(context);
        server.start();
        System.out.println("http://127.0.0.1:" + ((ServerConnector) server.getConnectors()[0]).getLocalPort());
        server.join();
    }

    /** GET /read/NAMESPACE.TABLE?column=COLUMN&value=VALUE: the rows with a value, as Iceberg's Java reads them. */
    static class Rows extends HttpServlet {
        private final Catalog catalog;

        Rows(Catalog catalog) {
            this.catalog = catalog;
        }

        @Override
        protected void doGet(HttpServletRequest request, HttpServletResponse response) throws IOException {
            var table = catalog.loadTable(TableIdentifier.parse(request.getPathInfo().substring(1)));
            response.setCharacterEncoding("UTF-8");
            String column = request.getParameter("column");
            String text = request.getParameter("value");
            Object value = table.schema().findType(column).typeId() == Type.TypeID.LONG ? Long.valueOf(text) : text;
            var scan = IcebergGenerics.read(table).where(Expressions.equal(column, value));
            try (CloseableIterable<Record> rows = scan.build()) {
                for (Record row : rows) {
                    response.getWriter().println(row);
                }
            }
        }
    }
}
