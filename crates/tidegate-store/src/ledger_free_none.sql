-- Where nothing ends, no tenant has more room than before. Stands where ledger_free.sql would.
, unparked AS (
    SELECT 1 WHERE $32::text[] IS NULL
)
