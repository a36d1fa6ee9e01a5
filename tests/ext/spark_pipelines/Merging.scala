// A catalog whose tables Spark can MERGE into, in memory: Auto CDC asks for one, and Spark itself brings none.
package dagster_ckpt.tests

import java.util.concurrent.ConcurrentHashMap
import java.util.{Collections, Map => JMap, Set => JSet}

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection
import org.apache.spark.sql.connector.catalog._
import org.apache.spark.sql.connector.read._
import org.apache.spark.sql.connector.write._
import org.apache.spark.sql.types.{StructField, StructType}
import org.apache.spark.sql.util.CaseInsensitiveStringMap

/** Of all sessions of the process: each has a catalog of its own. */
object Merging { val tables = new ConcurrentHashMap[Identifier, MergingTable]() }

class MergingCatalog extends TableCatalog with SupportsNamespaces {
  private var named = ""
  override def initialize(name: String, options: CaseInsensitiveStringMap): Unit = named = name
  override def name(): String = named

  override def listTables(namespace: Array[String]): Array[Identifier] =
    Merging.tables.keySet.asScala.filter(_.namespace.sameElements(namespace)).toArray
  override def loadTable(ident: Identifier): Table =
    Option(Merging.tables.get(ident)).getOrElse(throw new NoSuchTableException(ident))
  override def createTable(ident: Identifier, info: TableInfo): Table = {
    Merging.tables.put(ident, new MergingTable(ident.toString, info.columns, info.properties))
    loadTable(ident)
  }
  override def alterTable(ident: Identifier, changes: TableChange*): Table = loadTable(ident)
  override def dropTable(ident: Identifier): Boolean = Merging.tables.remove(ident) != null
  override def renameTable(from: Identifier, to: Identifier): Unit = throw new UnsupportedOperationException

  override def listNamespaces(): Array[Array[String]] = Array(Array("shop"))
  override def listNamespaces(namespace: Array[String]): Array[Array[String]] = Array.empty
  override def loadNamespaceMetadata(namespace: Array[String]): JMap[String, String] = Collections.emptyMap()
  override def createNamespace(namespace: Array[String], metadata: JMap[String, String]): Unit = ()
  override def alterNamespace(namespace: Array[String], changes: NamespaceChange*): Unit = ()
  override def dropNamespace(namespace: Array[String], cascade: Boolean): Boolean = false
}

class MergingTable(named: String, has: Array[Column], told: JMap[String, String])
    extends Table with SupportsRead with SupportsWrite with SupportsRowLevelOperations {
  @volatile var rows: Vector[InternalRow] = Vector.empty
  val rowSchema: StructType = StructType(has.map(one => StructField(one.name, one.dataType, one.nullable)))

  override def name(): String = named
  override def columns(): Array[Column] = has
  override def properties(): JMap[String, String] = told
  override def capabilities(): JSet[TableCapability] =
    JSet.of(TableCapability.BATCH_READ, TableCapability.BATCH_WRITE, TableCapability.TRUNCATE)
  override def newScanBuilder(options: CaseInsensitiveStringMap): ScanBuilder = new MergingScan(this)
  override def newWriteBuilder(info: LogicalWriteInfo): WriteBuilder = new MergingWrite(this, false)

  override def newRowLevelOperationBuilder(info: RowLevelOperationInfo): RowLevelOperationBuilder = {
    val table = this
    val operation = new RowLevelOperation {
      override def command(): RowLevelOperation.Command = info.command
      override def newScanBuilder(options: CaseInsensitiveStringMap): ScanBuilder = new MergingScan(table)
      override def newWriteBuilder(info: LogicalWriteInfo): WriteBuilder = new MergingWrite(table, true)
    }
    () => operation
  }
}

case class Part(rows: Vector[InternalRow]) extends InputPartition with WriterCommitMessage

class MergingScan(table: MergingTable) extends ScanBuilder with Scan with Batch {
  override def build(): Scan = this
  override def readSchema(): StructType = table.rowSchema
  override def toBatch(): Batch = this
  override def planInputPartitions(): Array[InputPartition] = Array(Part(table.rows))
  override def createReaderFactory(): PartitionReaderFactory = new PartReaders
}

class PartReaders extends PartitionReaderFactory {
  override def createReader(part: InputPartition): PartitionReader[InternalRow] = new PartitionReader[InternalRow] {
    private val left = part.asInstanceOf[Part].rows.iterator
    private var current: InternalRow = _
    override def next(): Boolean = { val more = left.hasNext; if (more) current = left.next(); more }
    override def get(): InternalRow = current
    override def close(): Unit = ()
  }
}

/** What is written comes beside the rows there are, or in place of all of them: a MERGE rewrites the whole table. */
class MergingWrite(table: MergingTable, private var replaces: Boolean)
    extends SupportsTruncate with Write with BatchWrite {
  override def truncate(): WriteBuilder = { replaces = true; this }
  override def build(): Write = this
  override def toBatch(): BatchWrite = this
  override def createBatchWriterFactory(info: PhysicalWriteInfo): DataWriterFactory = new PartWriters(table.rowSchema)
  override def commit(messages: Array[WriterCommitMessage]): Unit = {
    val written = messages.toVector.flatMap(_.asInstanceOf[Part].rows)
    table.rows = if (replaces) written else table.rows ++ written
  }
  override def abort(messages: Array[WriterCommitMessage]): Unit = ()
}

class PartWriters(rowSchema: StructType) extends DataWriterFactory {
  override def createWriter(partition: Int, task: Long): DataWriter[InternalRow] = new DataWriter[InternalRow] {
    private val whole = UnsafeProjection.create(rowSchema)
    private val rows = Vector.newBuilder[InternalRow]
    override def write(row: InternalRow): Unit = rows += whole(row).copy()
    override def commit(): WriterCommitMessage = Part(rows.result())
    override def abort(): Unit = ()
    override def close(): Unit = ()
  }
}
