-- A table, a flow into it, and a view between, in SQL.
CREATE TEMPORARY VIEW named AS SELECT customer, amount FROM STREAM orders WHERE customer IS NOT NULL;

CREATE STREAMING TABLE names AS
WITH short AS (SELECT substr(customer, 1, 1) AS letter, amount FROM STREAM named)
SELECT letter, amount + 1 AS more FROM short;

CREATE MATERIALIZED VIEW letters AS
SELECT letter, count(*) AS n, (SELECT count(*) FROM orders) AS orders FROM spark_catalog.default.names GROUP BY letter;
